// The loops of rounding_loops.h for the instruction set of the including file, within its namespace; plain loops over blocks
// of 32, which compilers turn into vectors.
#include "rounding_loops.h"

namespace rooftree::ROOFTREE_ISA {

namespace {

// Half to float without a branch; a subnormal's fraction becomes exact by taking its leading one out again.
inline float widen_half(uint16_t half) {
    const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
    const uint32_t magnitude = static_cast<uint32_t>(half & 0x7fff) << 13;
    const uint32_t normal = magnitude + (112u << 23);
    const uint32_t subnormal = float_to_bits(bits_to_float(magnitude + (113u << 23)) - 0x1p-14f);
    const uint32_t finite = magnitude < (1u << 23) ? subnormal : normal;
    return bits_to_float(sign | (magnitude >= (31u << 23) ? magnitude | 0x7f800000u : finite));
}

template <typename Word, typename Widen>
inline void widen(const uint8_t* stored, int64_t count, float* out, Widen value) {
    for (int64_t i = 0; i < count; i++) {
        Word word;
        std::memcpy(&word, stored + i * sizeof(Word), sizeof(Word));
        out[i] = value(word);
    }
}

void decode(Format source, const uint8_t* stored, int64_t count, float* out) {
    switch (source) {
        case Format::F32: return widen<uint32_t>(stored, count, out, bits_to_float);
        case Format::F16: return widen<uint16_t>(stored, count, out, widen_half);
        case Format::BF16: return widen<uint16_t>(stored, count, out, bf16_to_float);
        default:
            return widen<uint8_t>(stored, count, out, [](uint8_t code) {
                const float value = widen_half(e4m3_to_half_bits(code)) * kE4m3HalfScale;
                return (code & 0x7f) == 0x7f ? bits_to_float(0x7fc00000u | static_cast<uint32_t>(code & 0x80) << 24) : value;
            });
    }
}

void encode_bf16(const float* values, int64_t count, uint8_t* out) {
    for (int64_t i = 0; i < count; i++) {
        const uint32_t bits = float_to_bits(values[i]);
        const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
        const uint32_t quiet = bits >> 16 | 0x40;
        const uint16_t word = static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
        std::memcpy(out + 2 * i, &word, 2);
    }
}

// ---- blocks of 32 -----------------------------------------------------------------------------------------------

constexpr int32_t kInfinity = 0x7f800000;
constexpr float kNan = __builtin_nanf("");

// A number's magnitude as an integer of the same order; NaN is above infinity.
inline int32_t magnitude(float value) { return static_cast<int32_t>(float_to_bits(value) & 0x7fffffffu); }

// Least and greatest of a block as integers in the order of the numbers, -0 before 0, NaN at either end.
struct Extremes {
    int32_t low, high;

    explicit Extremes(const float* x) {
        int32_t least = INT32_MAX, most = INT32_MIN;
        for (int i = 0; i < kBlock; i++) {
            const int32_t bits = static_cast<int32_t>(float_to_bits(x[i]));
            const int32_t ordered = bits ^ ((bits >> 31) & 0x7fffffff);
            least = ordered < least ? ordered : least;
            most = ordered > most ? ordered : most;
        }
        low = least;
        high = most;
    }

    // Of the greatest positive and of the least negative number; -1: there is none.
    int32_t positive() const { return high < 0 ? -1 : high; }
    int32_t negative() const { return low < 0 ? ~low & 0x7fffffff : -1; }
    bool has_nan() const { return positive() > kInfinity || negative() > kInfinity; }

    static float value(int32_t ordered) {
        return bits_to_float(static_cast<uint32_t>(ordered ^ ((ordered >> 31) & 0x7fffffff)));
    }
};

// The element of largest magnitude, with its sign; the first of equals.
inline float largest(const float* x) {
    const Extremes extremes(x);
    if (extremes.has_nan()) return kNan;
    const int32_t positive = extremes.positive(), negative = extremes.negative();
    if (positive == negative) {
        int i = 0;
        while (magnitude(x[i]) != positive) i++;
        return x[i];
    }
    // Signs come as they like: no branch.
    const uint32_t sign = static_cast<uint32_t>(positive < negative) << 31;
    return bits_to_float(sign | static_cast<uint32_t>(positive > negative ? positive : negative));
}

// Least and greatest element; of zeros, the first.
inline void between(const float* x, float* low, float* high) {
    const Extremes extremes(x);
    *low = extremes.has_nan() ? kNan : Extremes::value(extremes.low);
    *high = extremes.has_nan() ? kNan : Extremes::value(extremes.high);
    for (int i = kBlock - 1; i >= 0 && *low == 0; i--)
        if (x[i] == 0) *low = x[i];
    if (*high == *low) *high = *low;
}

// 0 where 1 / scale would overflow: such a scale is 0 once stored as half.
inline float reciprocal(float scale) { return magnitude(scale) >= 0x00800000 && scale == scale ? 1.0f / scale : 0.0f; }

// What has no number becomes 0.
inline int whole(float steps) { return static_cast<int>(steps == steps ? steps : 0.0f); }

inline void store_half(float value, uint8_t* out) {
    const uint16_t half = float_to_half(value);
    std::memcpy(out, &half, 2);
}

// Compilers take these apart when they are written byte by byte, so eight bytes are one word, the first lowest.
inline uint64_t eight(const uint8_t* q) {
    uint64_t word;
    std::memcpy(&word, q, 8);
    return word;
}

inline void store_nibbles(const uint8_t* q, uint8_t* out) {
    constexpr uint64_t kLow = 0x0f0f0f0f0f0f0f0f;
    for (int i = 0; i < kBlock / 2; i += 8) {
        const uint64_t nibbles = (eight(q + i) & kLow) | (eight(q + kBlock / 2 + i) & kLow) << 4;
        std::memcpy(out + i, &nibbles, 8);
    }
}

inline void store_fifth_bits(const uint8_t* q, uint8_t* out) {
    for (int i = 0; i < kBlock; i += 8) {
        const uint64_t bits = (eight(q + i) >> 4) & 0x0101010101010101;
        out[i / 8] = static_cast<uint8_t>(bits * 0x0102040810204080 >> 56);  // byte j's bit goes to bit 56 + j
    }
}

// Q4_0, Q5_0: the largest element becomes exactly -kHalf steps.
template <int kHalf>
inline void encode_symmetric(const float* x, uint8_t* out) {
    const float scale = largest(x) / -static_cast<float>(kHalf), inverse = reciprocal(scale);
    uint8_t q[kBlock];
    for (int i = 0; i < kBlock; i++) {
        const int steps = whole(x[i] * inverse + (kHalf + 0.5f));
        q[i] = static_cast<uint8_t>(steps < 2 * kHalf - 1 ? steps : 2 * kHalf - 1);
    }
    store_half(scale, out);
    if (kHalf == 16) store_fifth_bits(q, out + 2);
    store_nibbles(q, out + (kHalf == 16 ? 6 : 2));
}

// Q4_1, Q5_1: the least element becomes 0, the greatest kLevels.
template <int kLevels>
inline void encode_between(const float* x, uint8_t* out) {
    float low, high;
    between(x, &low, &high);
    const float scale = (high - low) / static_cast<float>(kLevels), inverse = reciprocal(scale);
    uint8_t q[kBlock];
    for (int i = 0; i < kBlock; i++) {
        const int steps = whole((x[i] - low) * inverse + 0.5f);
        q[i] = static_cast<uint8_t>(steps < kLevels ? steps : kLevels);
    }
    store_half(scale, out);
    store_half(low, out + 2);
    if (kLevels == 31) store_fifth_bits(q, out + 4);
    store_nibbles(q, out + (kLevels == 31 ? 8 : 4));
}

// Half a step is rounded away from zero.
inline void encode_q8_0(const float* x, uint8_t* out) {
    int32_t most = 0;
    for (int i = 0; i < kBlock; i++) most = magnitude(x[i]) > most ? magnitude(x[i]) : most;
    const float scale = bits_to_float(most) / 127.0f, inverse = reciprocal(scale);
    store_half(scale, out);
    for (int i = 0; i < kBlock; i++) {
        const float steps = x[i] * inverse;
        const int towards_zero = whole(steps);
        const float rest = steps - static_cast<float>(towards_zero);
        out[2 + i] = static_cast<uint8_t>(towards_zero + whole(2 * rest));
    }
}

template <typename Encode>
inline void blocks(const float* values, int64_t count, size_t bytes, uint8_t* out, Encode encode_block) {
    for (int64_t i = 0; i < count / kBlock; i++) encode_block(values + i * kBlock, out + i * bytes);
}

void encode(Format target, const float* values, int64_t count, uint8_t* out) {
    switch (target) {
        case Format::BF16: return encode_bf16(values, count, out);
        case Format::Q4_0: return blocks(values, count, 18, out, encode_symmetric<8>);
        case Format::Q5_0: return blocks(values, count, 22, out, encode_symmetric<16>);
        case Format::Q4_1: return blocks(values, count, 20, out, encode_between<15>);
        case Format::Q5_1: return blocks(values, count, 24, out, encode_between<31>);
        default: return blocks(values, count, 34, out, encode_q8_0);
    }
}

}  // namespace

}  // namespace rooftree::ROOFTREE_ISA
