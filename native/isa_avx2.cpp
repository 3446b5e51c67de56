// Kernels for AVX2 + FMA + F16C. Integer products: maddubs of unsigned weights and signed inputs.
#define ROOFTREE_ISA avx2
#define ROOFTREE_ISA_NAME "avx2"
#include "simd/avx2.h"

#include "kernels.h"
#include "tile_output.h"

namespace rooftree::avx2 {

static inline __m256i load256(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
static inline __m256 load_halves(const uint8_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

static inline __m256 load_bytes(const uint8_t* p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
static inline __m256 load_signed_bytes(const uint8_t* p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}

// 32 bits as 32 bytes, 16 where set.
static inline __m256i spread_fifth_bits(const uint8_t* p) {
    uint32_t bits;
    std::memcpy(&bits, p, 4);
    const __m256i which = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<int>(bits)), which);
    const __m256i bit = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201));
    const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit);
    return _mm256_and_si256(set, _mm256_set1_epi8(16));
}

// Eight of the tile's rows for one step of 32 inputs, unpacked once for several tokens.
template <Format kFormat>
struct Step {
    static constexpr TileLayout layout = tile_layout(kFormat);
    static constexpr int parts = has_two_scales(kFormat) ? 2 : 1;  // stretches of inputs with a scale of their own
    // Products of a weight pair and an input pair that 16 bits hold: 2 * 127 * (2^bits - 1) each.
    static constexpr int adds = is_fp4(kFormat) || layout.bits == 5 ? 4 : layout.bits == 4 ? 8 : 2;
    __m256i w[8];
    __m256 scale[parts], minimum;

    Step(const uint8_t* tile, int64_t s, int half) {
        const uint8_t* step = layout.step(tile, s);
        load_scales(layout.super(tile, s) + 16 * half, step, half);
        const uint8_t* weights = step + layout.header + 32 * half;
        const __m256i mask = _mm256_set1_epi8(15);
        ROOFTREE_UNROLL
        for (int g = 0; g < 4; g++) {
            const __m256i bytes = load256(weights + 64 * g);
            w[g] = _mm256_and_si256(bytes, mask);
            w[g + 4] = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), mask);
        }
        if constexpr (is_fp4(kFormat)) {
            const __m256i codes = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(kFp4Codes)));
            ROOFTREE_UNROLL
            for (int u = 0; u < 8; u++) w[u] = _mm256_shuffle_epi8(codes, w[u]);
        }
        if constexpr (layout.bits == 5) {
            const uint8_t* fifth = step + layout.header + 256 + 4 * half;
            ROOFTREE_UNROLL
            for (int u = 0; u < 8; u++) w[u] = _mm256_or_si256(w[u], spread_fifth_bits(fifth + 8 * u));
        }
        if constexpr (layout.bits == 6) {
            const __m256i pair = _mm256_set1_epi8(0x30);
            ROOFTREE_UNROLL
            for (int h = 0; h < 2; h++) {
                const __m256i high = load256(weights + 256 + 64 * h);
                w[4 * h] = _mm256_or_si256(w[4 * h], _mm256_and_si256(_mm256_slli_epi16(high, 4), pair));
                w[4 * h + 1] = _mm256_or_si256(w[4 * h + 1], _mm256_and_si256(_mm256_slli_epi16(high, 2), pair));
                w[4 * h + 2] = _mm256_or_si256(w[4 * h + 2], _mm256_and_si256(high, pair));
                w[4 * h + 3] = _mm256_or_si256(w[4 * h + 3], _mm256_and_si256(_mm256_srli_epi16(high, 2), pair));
            }
        }
    }

    void load_scales(const uint8_t* super, const uint8_t* step, int half) {
        minimum = _mm256_setzero_ps();
        if constexpr (is_fp4(kFormat)) {
            scale[0] = _mm256_loadu_ps(reinterpret_cast<const float*>(step) + 8 * half);
            if constexpr (parts == 2) scale[1] = _mm256_loadu_ps(reinterpret_cast<const float*>(step) + 16 + 8 * half);
        } else if constexpr (kFormat == Format::Q6_K) {
            scale[0] = _mm256_mul_ps(load_halves(super), load_signed_bytes(step + 8 * half));
            scale[parts - 1] = _mm256_mul_ps(load_halves(super), load_signed_bytes(step + 16 + 8 * half));
        } else if constexpr (is_k_quant(kFormat)) {
            scale[0] = _mm256_mul_ps(load_halves(super), load_bytes(step + 8 * half));
            minimum = _mm256_sub_ps(minimum, _mm256_mul_ps(load_halves(super + 32), load_bytes(step + 16 + 8 * half)));
        } else {
            scale[0] = load_halves(step + 16 * half);
            if constexpr (has_minimum(kFormat)) minimum = load_halves(step + 32 + 16 * half);
        }
    }

    // Sum over input groups [begin, end) of weight * input, less the weights' offset; `negated8`: -8 * sum of the inputs.
    __m256i dot(const int8_t* q, int begin, int end, int32_t negated8) const {
        __m256i sum = _mm256_setzero_si256();
        constexpr int offset = weight_offset(kFormat);
        if constexpr (offset != 0) sum = _mm256_set1_epi32(negated8);
        if constexpr (offset == 12) sum = _mm256_add_epi32(sum, _mm256_srai_epi32(sum, 1));
        else if constexpr (offset > 8) sum = _mm256_slli_epi32(sum, __builtin_ctz(offset / 8));
        ROOFTREE_UNROLL
        for (int u = begin; u < end; u += adds) {
            __m256i words = _mm256_maddubs_epi16(w[u], _mm256_set1_epi32(four_inputs(q + 4 * u)));
            ROOFTREE_UNROLL
            for (int v = u + 1; v < u + adds; v++)
                words = _mm256_add_epi16(words, _mm256_maddubs_epi16(w[v], _mm256_set1_epi32(four_inputs(q + 4 * v))));
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(words, _mm256_set1_epi16(1)));
        }
        return sum;
    }
};

// Eight-bit weights, signed: |w| times the input carrying w's sign. A pair reaches 2 * 128 * 127 = 32,512: widened
// at once.
template <>
struct Step<Format::Q8_0> {
    static constexpr int parts = 1;
    const uint8_t* bytes;
    __m256 scale[1], minimum;

    Step(const uint8_t* tile, int64_t s, int half) {
        const uint8_t* step = tile_layout(Format::Q8_0).step(tile, s);
        bytes = step + 32 + 32 * half;
        scale[0] = load_halves(step + 16 * half);
        minimum = _mm256_setzero_ps();
    }

    __m256i dot(const int8_t* q, int, int, int32_t) const {
        __m256i sum = _mm256_setzero_si256();
        ROOFTREE_UNROLL
        for (int u = 0; u < 8; u++) {
            const __m256i w = _mm256_xor_si256(load256(bytes + 64 * u), _mm256_set1_epi8(-128));
            const __m256i x = _mm256_sign_epi8(_mm256_set1_epi32(four_inputs(q + 4 * u)), w);
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_abs_epi8(w), x), _mm256_set1_epi16(1)));
        }
        return sum;
    }
};

// T rows of a panel of `kWidth`, from row `lane` on, times one or both halves of the tile.
template <Format kFormat, int kWidth, int T, int kHalves>
static inline void quantised_tokens(const uint8_t* tile, int64_t k, int first_half, const uint8_t* panel, int lane,
                                    const TileOutput& out, int first) {
    using Weights = Step<kFormat>;
    __m256 acc[kHalves][T];
    ROOFTREE_UNROLL
    for (int h = 0; h < kHalves; h++)
        ROOFTREE_UNROLL
        for (int t = 0; t < T; t++) acc[h][t] = _mm256_setzero_ps();
    for (int64_t s = 0; s < k / kBlock; s++) {
        const PanelStep x(panel, kWidth, s);
        ROOFTREE_UNROLL
        for (int h = 0; h < kHalves; h++) {
            const Weights weights(tile, s, first_half + h);
            ROOFTREE_UNROLL
            for (int t = 0; t < T; t++) {
                const int row = lane + t;
                const int8_t* q = x.q + row * kBlock;
                const __m256 input_scale = _mm256_broadcast_ss(x.scale + row);
                if constexpr (Weights::parts == 1) {
                    const __m256 isum = _mm256_cvtepi32_ps(weights.dot(q, 0, 8, x.negated8[row]));
                    acc[h][t] = _mm256_fmadd_ps(_mm256_mul_ps(isum, input_scale), weights.scale[0], acc[h][t]);
                } else {
                    const int32_t first_half = x.negated8_first[row];
                    const __m256 low = _mm256_cvtepi32_ps(weights.dot(q, 0, 4, first_half));
                    const __m256 high = _mm256_cvtepi32_ps(weights.dot(q, 4, 8, x.negated8[row] - first_half));
                    acc[h][t] = _mm256_fmadd_ps(_mm256_mul_ps(low, input_scale), weights.scale[0], acc[h][t]);
                    acc[h][t] = _mm256_fmadd_ps(_mm256_mul_ps(high, input_scale), weights.scale[1], acc[h][t]);
                }
                if constexpr (has_minimum(kFormat))
                    acc[h][t] = _mm256_fmadd_ps(weights.minimum, _mm256_broadcast_ss(x.sum + row), acc[h][t]);
            }
        }
    }
    ROOFTREE_UNROLL
    for (int h = 0; h < kHalves; h++)
        ROOFTREE_UNROLL
        for (int t = 0; t < T; t++) put(out, first + t, 8 * (first_half + h), acc[h][t]);
}

template <Format kFormat>
static void quantised_tile(const uint8_t* tile, int64_t k, const uint8_t* x, size_t stride, int m, const TileOutput& out) {
    int t = 0;
    for (; t + 8 <= m; t += 8)
        for (int lane = 0; lane < 8; lane += 4)
            for (int half = 0; half < 2; half++)
                quantised_tokens<kFormat, 8, 4, 1>(tile, k, half, x + t * stride, lane, out, t + lane);
    if (m & 4) {
        for (int half = 0; half < 2; half++) quantised_tokens<kFormat, 4, 4, 1>(tile, k, half, x + t * stride, 0, out, t);
        t += 4;
    }
    if (m & 2) {
        quantised_tokens<kFormat, 2, 2, 2>(tile, k, 0, x + t * stride, 0, out, t);
        t += 2;
    }
    if (m & 1) quantised_tokens<kFormat, 1, 1, 2>(tile, k, 0, x + t * stride, 0, out, t);
}

}  // namespace rooftree::avx2

#include "kernels_impl.h"

namespace rooftree {
const Kernels& avx2_kernels() { return avx2::kKernels; }
}  // namespace rooftree
