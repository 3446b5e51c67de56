// Sixteen floats with AVX-512 (F, BW, DQ, VL).
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "../tensor.h"

namespace rooftree::ROOFTREE_ISA {

struct Simd {
    static constexpr int N = 16;
    using F = __m512;

    static F zero() { return _mm512_setzero_ps(); }
    static F set1(float x) { return _mm512_set1_ps(x); }
    static F load(const float* p) { return _mm512_loadu_ps(p); }
    static void store(float* p, F v) { _mm512_storeu_ps(p, v); }
    static F load_f16(const uint16_t* p) {
        return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    }
    // 16 pairs of bf16 as the floats of their first and of their second elements.
    static void load_bf16_pairs(const uint16_t* p, F* first, F* second) {
        const __m512i pairs = _mm512_loadu_si512(p);
        *first = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
        *second = _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
    }
    static F load_int8(const int8_t* p) {
        return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
    }
    // E4M3 codes as halves of the same fields: 2^-8 of their values. Widened with its sign and shifted, a code has all
    // its fields in place, and a copy of the sign in the highest bit of the exponent.
    static F load_e4m3_unscaled(const uint8_t* p) {
        const __m256i codes = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
        return _mm512_cvtph_ps(_mm256_and_si256(_mm256_slli_epi16(codes, 7), _mm256_set1_epi16(~0x4000)));
    }
    static void store_f16(uint16_t* p, F v) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
    }
    static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
    static F max(F a, F b) { return _mm512_max_ps(a, b); }
    static F min(F a, F b) { return _mm512_min_ps(a, b); }
    static F abs(F a) { return _mm512_abs_ps(a); }
    static F round(F a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
    static F scale_by_power(F v, F n) {
        const __m512i exponent = _mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23);
        return _mm512_mul_ps(v, _mm512_castsi512_ps(exponent));
    }
    // The same while v and the result are normal numbers.
    static F scale_to_normal(F v, F n) { return _mm512_scalef_ps(v, n); }
    static F zero_where_less(F x, F limit, F v) {
        return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, limit, _CMP_NLT_UQ), v);
    }
    static float reduce_add(F v) { return _mm512_reduce_add_ps(v); }
    static float reduce_max(F v) { return _mm512_reduce_max_ps(v); }
    static void store_int8(int8_t* p, F v) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(v)));
    }
};

}  // namespace rooftree::ROOFTREE_ISA
