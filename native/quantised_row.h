// A view of one quantised activation row (see kernels.h, quantised_row_bytes).
#pragma once

#include <cstdint>
#include <cstring>

#include "tensor.h"

namespace rooftree {

template <typename Byte, typename Int8, typename Float, typename Int32>
struct QuantisedRowView {
    Int8* q;               // [k]
    Float* scale;          // [k / 32], as all that follow
    Float* sum;            // scale * sum of the block
    Int32* negated;        // -sum of the block
    Int32* negated_first;  // -sum of its first 16 inputs

    QuantisedRowView(Byte* row, int64_t k)
        : q(reinterpret_cast<Int8*>(row)),
          scale(reinterpret_cast<Float*>(row + k)),
          sum(scale + k / kBlock),
          negated(reinterpret_cast<Int32*>(sum + k / kBlock)),
          negated_first(negated + k / kBlock) {}
};

using QuantisedRow = QuantisedRowView<const uint8_t, const int8_t, const float, const int32_t>;
using MutableQuantisedRow = QuantisedRowView<uint8_t, int8_t, float, int32_t>;

// Four inputs as one word, to be spread over all lanes.
static inline int32_t four_inputs(const int8_t* q) {
    int32_t word;
    std::memcpy(&word, q, 4);
    return word;
}

}  // namespace rooftree
