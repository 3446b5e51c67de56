// How a tile's products leave the registers. Included once per instruction set, after its simd/ header.
#pragma once

#include "kernels.h"

namespace rooftree::ROOFTREE_ISA {

// Columns [column, column + Simd::N) of token t.
static inline void put(const TileOutput& out, int t, int column, Simd::F v) {
    float* y = out.y + t * out.stride + column;
    if (out.bias) v = v + Simd::load(out.bias + column);
    if (out.accumulate) v = Simd::load(y) + v;
    Simd::store(y, v);
}

}  // namespace rooftree::ROOFTREE_ISA
