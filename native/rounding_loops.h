// Floats in and out of storage formats, bit for bit as checkpoint/formats.py converts them (there stands which values the
// formats have, and how ggml's reference code chooses a block's scale).
//
// Where a block holds NaN, or its scale is not finite, neither are the values that come out; which NaN is not defined.
#pragma once

#include "tensor.h"

namespace rooftree {

// The loops of one instruction set. All give the same bits.
struct RoundingLoops {
    // `count` elements of F32, F16, BF16 or F8_E4M3 as floats, factors beside them left out.
    void (*decode)(Format source, const uint8_t* stored, int64_t count, float* out);
    // The reverse, to BF16, Q4_0, Q4_1, Q5_0, Q5_1 or Q8_0; `count` is a multiple of the format's block.
    void (*encode)(Format target, const float* values, int64_t count, uint8_t* out);
};

const RoundingLoops& portable_rounding();
#if defined(ROOFTREE_X86)
const RoundingLoops& avx2_rounding();
#endif

}  // namespace rooftree
