// Storage formats, their sizes, and half-precision conversion without hardware.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace rooftree {

enum class Format : int {
    F32 = 0, F16 = 1, BF16 = 2, Q4_0 = 3, Q4_1 = 4, Q8_0 = 5, Q5_0 = 6, Q5_1 = 7, Q4_K = 8, Q5_K = 9, Q6_K = 10,
    F8_E4M3 = 11, MXFP4 = 12, NVFP4 = 13
};

// Inputs that share one scale in quantised activations: the kernels' step along a quantised row.
constexpr int kBlock = 32;
// Inputs of a K-quant super-block.
constexpr int kSuperBlock = 256;

// Whether the kernels multiply it with int8 inputs (else with floats).
constexpr bool is_quantised(Format f) { return f >= Format::Q4_0 && f != Format::F8_E4M3; }
constexpr bool is_k_quant(Format f) { return f >= Format::Q4_K && f <= Format::Q6_K; }
constexpr bool is_fp4(Format f) { return f == Format::MXFP4 || f == Format::NVFP4; }

// Inputs and bytes of the unit in which a checkpoint stores a row.
struct StoredBlock {
    int inputs;
    size_t bytes;
};

inline StoredBlock stored_block(Format f) {
    switch (f) {
        case Format::F32: return {1, 4};
        case Format::F16: case Format::BF16: return {1, 2};
        case Format::Q4_0: return {kBlock, 18};
        case Format::Q4_1: return {kBlock, 20};
        case Format::Q5_0: return {kBlock, 22};
        case Format::Q5_1: return {kBlock, 24};
        case Format::Q8_0: return {kBlock, 34};
        case Format::Q4_K: return {kSuperBlock, 144};
        case Format::Q5_K: return {kSuperBlock, 176};
        case Format::Q6_K: return {kSuperBlock, 210};
        case Format::F8_E4M3: return {1, 1};
        case Format::MXFP4: return {kBlock, 17};
        case Format::NVFP4: return {kBlock, 18};  // two blocks of 16
    }
    return {1, 0};
}

inline size_t stored_row_bytes(Format f, size_t k) { return k / stored_block(f).inputs * stored_block(f).bytes; }

static inline float bits_to_float(uint32_t u) {
    float f;
    std::memcpy(&f, &u, 4);
    return f;
}

static inline uint32_t float_to_bits(float f) {
    uint32_t u;
    std::memcpy(&u, &f, 4);
    return u;
}

static inline float bf16_to_float(uint16_t h) { return bits_to_float(static_cast<uint32_t>(h) << 16); }

// Round to nearest even; overflow gives infinity, NaN a quiet one.
static inline uint16_t float_to_bf16(float f) {
    const uint32_t bits = float_to_bits(f);
    const uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1);
    return static_cast<uint16_t>(((bits & 0x7fffffffu) > 0x7f800000u ? bits | 0x400000u : rounded) >> 16);
}

static inline float half_to_float(uint16_t h) {
    const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16;
    const uint32_t exponent = (h >> 10) & 31;
    const uint32_t mantissa = h & 1023;
    if (exponent == 31) return bits_to_float(sign | 0x7f800000u | (mantissa << 13));
    if (exponent != 0) return bits_to_float(sign | ((exponent + 112) << 23) | (mantissa << 13));
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;  // subnormal: exact
    return bits_to_float(sign | float_to_bits(magnitude));
}

// Round to nearest even; overflow gives infinity (callers that must stay finite clamp first).
static inline uint16_t float_to_half(float f) {
    const uint32_t bits = float_to_bits(f);
    const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
    const uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00);
    if (magnitude >= 0x47800000u) return static_cast<uint16_t>(sign | 0x7c00);
    if (magnitude < 0x38800000u) {
        // Adding 0.5 aligns the subnormal's last bit with the float's: the addition does the rounding.
        const float shifted = bits_to_float(magnitude) + 0.5f;
        return static_cast<uint16_t>(sign | (float_to_bits(shifted) - 0x3f000000u));
    }
    const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1) - (112u << 23);
    return static_cast<uint16_t>(sign | (rounded >> 13));
}

// E4M3: 4 bits of exponent (bias 7), 3 of mantissa, no infinity; largest 448.
constexpr float kE4m3Max = 448.0f;

// The code's magnitude is that of a half with the same fields, but for 2^8 between the exponents' biases.
static inline uint16_t e4m3_to_half_bits(uint8_t code) {
    return static_cast<uint16_t>((code & 0x80) << 8 | (code & 0x7f) << 7);
}
constexpr float kE4m3HalfScale = 256.0f;

// Round to nearest even; |f| must not exceed 448.
static inline uint8_t float_to_e4m3(float f) {
    const uint32_t bits = float_to_bits(f);
    const uint8_t sign = static_cast<uint8_t>((bits >> 24) & 0x80);
    const uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude < 0x3c800000u) {  // below 2^-6: multiples of 2^-9, rounded by adding where they are the last bit
        const float shifted = bits_to_float(magnitude) + 16384.0f;
        return static_cast<uint8_t>(sign | (float_to_bits(shifted) - 0x46800000u));
    }
    const uint32_t rounded = magnitude + 0x7ffffu + ((magnitude >> 20) & 1) - (120u << 23);
    return static_cast<uint8_t>(sign | (rounded >> 20));
}

// Largest finite half and bf16: K and V are clamped to them, so that a masked position can never spread infinity.
constexpr float kHalfMax = 65504.0f;
constexpr float kBf16Max = 0x1.fep127f;

}  // namespace rooftree
