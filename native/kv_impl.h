// The elements of the KV cache by format, and how a position is written, in terms of `Simd`. Included once per
// instruction set, after exp_impl.h, inside no namespace.
#pragma once

#include <cmath>

#include "kernels.h"

namespace rooftree::ROOFTREE_ISA {

// An element: its type; how many rows (channels of K, positions of V) lie beside each other, element by element; how
// vectors of it are read; whether positions carry scales.
struct HalfKv {
    uint16_t bits;
    static constexpr int depth = 1;
    static constexpr bool scaled = false;
    static F load(const HalfKv* p) { return Simd::load_f16(&p->bits); }
    static float value(HalfKv x) { return half_to_float(x.bits); }
};
struct FloatKv {
    float bits;
    static constexpr int depth = 1;
    static constexpr bool scaled = false;
    static F load(const FloatKv* p) { return Simd::load(&p->bits); }
    static float value(FloatKv x) { return x.bits; }
};
struct Int8Kv {
    int8_t bits;
    static constexpr int depth = 1;
    static constexpr bool scaled = true;
    static constexpr float largest = 127.0f, unit = 1.0f;
    static F load(const Int8Kv* p) { return Simd::load_int8(&p->bits); }
    static float value(Int8Kv x) { return x.bits; }
    static Int8Kv from(float x) { return {static_cast<int8_t>(__builtin_rintf(x))}; }
};
struct Fp8Kv {
    uint8_t bits;
    static constexpr int depth = 1;
    static constexpr bool scaled = true;
    static constexpr float largest = kE4m3Max, unit = kE4m3HalfScale;  // `load` leaves the unit to the scale
    static F load(const Fp8Kv* p) { return Simd::load_e4m3_unscaled(&p->bits); }
    static float value(Fp8Kv x) { return half_to_float(e4m3_to_half_bits(x.bits)); }
    static Fp8Kv from(float x) { return {float_to_e4m3(x)}; }
};
struct Bf16Kv {
    uint16_t bits;
    static constexpr int depth = 2;
    static constexpr bool scaled = false;
    static float value(Bf16Kv x) { return bf16_to_float(x.bits); }
};

// Where element (i, j) of `columns` columns lies.
template <typename Kv>
static inline int place(int i, int j, int columns) {
    return i / Kv::depth * Kv::depth * columns + j * Kv::depth + i % Kv::depth;
}

// How attention multiplies with elements: `depth` of each lane at a time (a Vector), by as many factors, in order.
// `widened`: many rows share a copy that is widened to float once, where that saves work.
template <typename Kv>
struct Products {
    using Factor = float;  // what queries, and weights of positions, are kept as
    using Vector = F;
    static constexpr bool widened = true;
    static Vector load(const Kv* p) { return Kv::load(p); }
    static Vector spread(const Factor* x) { return Simd::set1(*x); }
    static F add(Vector x, Vector y, F sum) { return Simd::fma(x, y, sum); }
    // Vectors of rows `columns` apart.
    static void store_rows(Vector v, int, float* out) { Simd::store(out, v); }
    static void put(Factor* out, F v) { Simd::store(out, v); }
    static void copy(const float* x, int n, Factor* out) { std::memcpy(out, x, n * sizeof(float)); }
};

struct FloatPair {
    F first, second;
};

template <>
struct Products<Bf16Kv> {
    using Factor = float;
    using Vector = FloatPair;
    static constexpr bool widened = true;
    static Vector load(const Bf16Kv* p) {
        Vector v;
        Simd::load_bf16_pairs(&p->bits, &v.first, &v.second);
        return v;
    }
    static Vector spread(const Factor* x) { return {Simd::set1(x[0]), Simd::set1(x[1])}; }
    static F add(Vector x, Vector y, F sum) { return Simd::fma(x.second, y.second, Simd::fma(x.first, y.first, sum)); }
    static void store_rows(Vector v, int columns, float* out) {
        Simd::store(out, v.first);
        Simd::store(out + columns, v.second);
    }
    static void put(Factor* out, F v) { Simd::store(out, v); }
    static void copy(const float* x, int n, Factor* out) { std::memcpy(out, x, n * sizeof(float)); }
};

// A block whose largest magnitude is under this counts as zero: 127 / magnitude would overflow.
constexpr float kLeastMagnitude = 1e-36f;

// Narrows n values to the cache's type; returns the position's scale (1 where the format has none).
// The 16-bit formats saturate: a masked position can then never spread infinity. (min and max give their second operand
// where one is NaN: NaN stays NaN.)
static inline float narrow(const float* x, int n, HalfKv* out) {
    int i = 0;
    for (; i + N <= n; i += N)
        Simd::store_f16(&out[i].bits, Simd::max(Simd::set1(-kHalfMax), Simd::min(Simd::set1(kHalfMax), Simd::load(x + i))));
    for (; i < n; i++) out[i].bits = float_to_half(x[i] > kHalfMax ? kHalfMax : x[i] < -kHalfMax ? -kHalfMax : x[i]);
    return 1.0f;
}
static inline float narrow(const float* x, int n, Bf16Kv* out) {
    for (int i = 0; i < n; i++) out[i].bits = float_to_bf16(x[i] > kBf16Max ? kBf16Max : x[i] < -kBf16Max ? -kBf16Max : x[i]);
    return 1.0f;
}
static inline float narrow(const float* x, int n, FloatKv* out) {
    std::memcpy(out, x, n * sizeof(float));
    return 1.0f;
}
template <typename Kv>
static inline float narrow(const float* x, int n, Kv* out) {
    float amax = 0.0f, poison = 0.0f;
    for (int i = 0; i < n; i++) {
        amax = std::fabs(x[i]) > amax ? std::fabs(x[i]) : amax;
        poison += x[i] * 0.0f;  // NaN if any value is NaN or infinite
    }
    const bool usable = poison == 0.0f && amax >= kLeastMagnitude;
    for (int i = 0; i < n; i++) out[i] = usable ? Kv::from(x[i] * (Kv::largest / amax)) : Kv{};
    return usable ? amax / Kv::largest * Kv::unit : poison;
}

// A thread writes only its position's elements: beside them in the same word may lie what another writes.
template <typename Kv>
static void write_kv_typed(const float* k, const float* v, int head_dim, int block_size, int slot, uint8_t* k_block, uint8_t* v_block) {
    Kv narrowed[kMaxHeadDim];
    Kv* k_out = reinterpret_cast<Kv*>(k_block);
    Kv* v_out = reinterpret_cast<Kv*>(v_block);
    const float k_scale = narrow(k, head_dim, narrowed);
    for (int d = 0; d < head_dim; d += Kv::depth) std::memcpy(k_out + place<Kv>(d, slot, block_size), narrowed + d, Kv::depth * sizeof(Kv));
    const float v_scale = narrow(v, head_dim, narrowed);
    for (int d = 0; d < head_dim; d++) v_out[place<Kv>(slot, d, head_dim)] = narrowed[d];
    if constexpr (Kv::scaled) {
        reinterpret_cast<float*>(k_out + head_dim * block_size)[slot] = k_scale;
        reinterpret_cast<float*>(v_out + head_dim * block_size)[slot] = v_scale;
    }
}

}  // namespace rooftree::ROOFTREE_ISA
