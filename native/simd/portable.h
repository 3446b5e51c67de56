// Eight floats in plain C++ (GCC and Clang vector types): for any processor without kernels of its own.
#pragma once

#include <cmath>
#include <cstdint>

#include "../tensor.h"

namespace rooftree::ROOFTREE_ISA {

struct Simd {
    static constexpr int N = 8;
    typedef float F __attribute__((vector_size(32)));
    typedef int32_t I __attribute__((vector_size(32)));

    static F zero() { return F{}; }
    static F set1(float x) { return F{} + x; }
    static F load(const float* p) { F v; std::memcpy(&v, p, 32); return v; }
    static void store(float* p, F v) { std::memcpy(p, &v, 32); }
    static F load_f16(const uint16_t* p) { F v; for (int i = 0; i < N; i++) v[i] = half_to_float(p[i]); return v; }
    // 8 pairs of bf16 as the floats of their first and of their second elements.
    static void load_bf16_pairs(const uint16_t* p, F* first, F* second) {
        for (int i = 0; i < N; i++) {
            (*first)[i] = bf16_to_float(p[2 * i]);
            (*second)[i] = bf16_to_float(p[2 * i + 1]);
        }
    }
    static F load_int8(const int8_t* p) { F v; for (int i = 0; i < N; i++) v[i] = p[i]; return v; }
    // E4M3 codes as halves of the same fields: 2^-8 of their values.
    static F load_e4m3_unscaled(const uint8_t* p) {
        F v;
        for (int i = 0; i < N; i++) v[i] = half_to_float(e4m3_to_half_bits(p[i]));
        return v;
    }
    static void store_f16(uint16_t* p, F v) { for (int i = 0; i < N; i++) p[i] = float_to_half(v[i]); }
    static F fma(F a, F b, F c) { return a * b + c; }
    static F max(F a, F b) { return a > b ? a : b; }
    static F min(F a, F b) { return a < b ? a : b; }
    static F abs(F a) { return max(a, -a); }
    static F round(F a) { F v; for (int i = 0; i < N; i++) v[i] = __builtin_rintf(a[i]); return v; }
    static F scale_by_power(F v, F n) {
        return v * (F)((__builtin_convertvector(n, I) + 127) << 23);
    }
    static F scale_to_normal(F v, F n) { return scale_by_power(v, n); }
    static F zero_where_less(F x, F limit, F v) { return x < limit ? F{} : v; }
    static float reduce_add(F v) {
        return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
    }
    static float reduce_max(F v) {
        float m = v[0];
        for (int i = 1; i < N; i++) m = v[i] > m ? v[i] : m;
        return m;
    }
    static void store_int8(int8_t* p, F v) { for (int i = 0; i < N; i++) p[i] = static_cast<int8_t>(v[i]); }
};

}  // namespace rooftree::ROOFTREE_ISA
