// Storage formats, their sizes, and half-precision conversion without hardware.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace rooftree {

enum class Format : int { F32 = 0, F16 = 1, BF16 = 2, Q4_0 = 3, Q4_1 = 4, Q8_0 = 5 };

// Elements that share one scale in the quantised formats, and in quantised activations.
constexpr int kBlock = 32;

inline bool is_quantised(Format f) { return f >= Format::Q4_0; }

// Bytes of `k` consecutive elements as a checkpoint stores them.
inline size_t stored_row_bytes(Format f, size_t k) {
    switch (f) {
        case Format::F32: return 4 * k;
        case Format::F16: case Format::BF16: return 2 * k;
        case Format::Q4_0: return k / kBlock * 18;
        case Format::Q4_1: return k / kBlock * 20;
        case Format::Q8_0: return k / kBlock * 34;
    }
    return 0;
}

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

// Largest finite half: K and V are clamped to it, so that a masked position can never spread infinity.
constexpr float kHalfMax = 65504.0f;

}  // namespace rooftree
