// Kernels for AVX-512 (F, BW, DQ, VL) with VNNI. Integer products: dpbusd of unsigned weights and signed inputs.
#define ROOFTREE_ISA avx512
#define ROOFTREE_ISA_NAME "avx512"
#include "simd/avx512.h"

#include "kernels.h"

namespace rooftree::avx512 {

static inline __m512i load512(const uint8_t* p) { return _mm512_loadu_si512(p); }
static inline __m512 load_halves(const uint8_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

static inline __m512 load_bytes(const uint8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
static inline __m512 load_signed_bytes(const uint8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}

// All sixteen rows for one step of 32 inputs, unpacked once for several tokens.
template <Format kFormat>
struct Step {
    static constexpr TileLayout layout = tile_layout(kFormat);
    static constexpr int parts = has_two_scales(kFormat) ? 2 : 1;  // stretches of inputs with a scale of their own
    __m512i w[8];
    __m512 scale[parts], minimum;

    Step(const uint8_t* tile, int64_t s) {
        const uint8_t* step = layout.step(tile, s);
        load_scales(layout.super(tile, s), step);
        const uint8_t* weights = step + layout.header;
        if constexpr (layout.bits == 8) {
            ROOFTREE_UNROLL
            for (int u = 0; u < 8; u++) w[u] = load512(weights + 64 * u);
            return;
        }
        const __m512i mask = _mm512_set1_epi8(15);
        ROOFTREE_UNROLL
        for (int g = 0; g < 4; g++) {
            const __m512i bytes = load512(weights + 64 * g);
            w[g] = _mm512_and_si512(bytes, mask);
            w[g + 4] = _mm512_and_si512(_mm512_srli_epi16(bytes, 4), mask);
        }
        if constexpr (is_fp4(kFormat)) {
            const __m512i codes = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(kFp4Codes)));
            ROOFTREE_UNROLL
            for (int u = 0; u < 8; u++) w[u] = _mm512_shuffle_epi8(codes, w[u]);
        }
        if constexpr (layout.bits == 5) {
            ROOFTREE_UNROLL
            for (int u = 0; u < 8; u++) {
                uint64_t fifth;
                std::memcpy(&fifth, weights + 256 + 8 * u, 8);
                w[u] = _mm512_mask_add_epi8(w[u], fifth, w[u], _mm512_set1_epi8(16));
            }
        }
        if constexpr (layout.bits == 6) {
            const __m512i pair = _mm512_set1_epi8(0x30);
            ROOFTREE_UNROLL
            for (int h = 0; h < 2; h++) {
                const __m512i high = load512(weights + 256 + 64 * h);
                w[4 * h] = _mm512_or_si512(w[4 * h], _mm512_and_si512(_mm512_slli_epi16(high, 4), pair));
                w[4 * h + 1] = _mm512_or_si512(w[4 * h + 1], _mm512_and_si512(_mm512_slli_epi16(high, 2), pair));
                w[4 * h + 2] = _mm512_or_si512(w[4 * h + 2], _mm512_and_si512(high, pair));
                w[4 * h + 3] = _mm512_or_si512(w[4 * h + 3], _mm512_and_si512(_mm512_srli_epi16(high, 2), pair));
            }
        }
    }

    void load_scales(const uint8_t* super, const uint8_t* step) {
        minimum = _mm512_setzero_ps();
        if constexpr (is_fp4(kFormat)) {
            scale[0] = _mm512_loadu_ps(step);
            if constexpr (parts == 2) scale[1] = _mm512_loadu_ps(step + 64);
        } else if constexpr (kFormat == Format::Q6_K) {
            scale[0] = _mm512_mul_ps(load_halves(super), load_signed_bytes(step));
            scale[parts - 1] = _mm512_mul_ps(load_halves(super), load_signed_bytes(step + 16));
        } else if constexpr (is_k_quant(kFormat)) {
            scale[0] = _mm512_mul_ps(load_halves(super), load_bytes(step));
            minimum = _mm512_sub_ps(minimum, _mm512_mul_ps(load_halves(super + 32), load_bytes(step + 16)));
        } else {
            scale[0] = load_halves(step);
            if constexpr (has_minimum(kFormat)) minimum = load_halves(step + 32);
        }
    }

    // Sum over input groups [begin, end) of weight * input, less the weights' offset; `negated`: -sum of the inputs.
    __m512i dot(const int8_t* q, int begin, int end, int32_t negated) const {
        __m512i sum = _mm512_setzero_si512();
        constexpr int offset = weight_offset(kFormat), low_bit = offset & -offset;
        if constexpr (offset != 0) {
            sum = _mm512_slli_epi32(_mm512_set1_epi32(negated), __builtin_ctz(low_bit));
            if constexpr (offset == 3 * low_bit) sum = _mm512_add_epi32(sum, _mm512_slli_epi32(sum, 1));
        }
        ROOFTREE_UNROLL
        for (int u = begin; u < end; u++) sum = _mm512_dpbusd_epi32(sum, w[u], _mm512_set1_epi32(four_inputs(q + 4 * u)));
        return sum;
    }
};

template <Format kFormat, int T>
static inline void quantised_tokens(const uint8_t* tile, int64_t k, const uint8_t* x, size_t stride, float* out) {
    using Weights = Step<kFormat>;
    __m512 acc[T];
    ROOFTREE_UNROLL
    for (int t = 0; t < T; t++) acc[t] = _mm512_setzero_ps();
    for (int64_t s = 0; s < k / kBlock; s++) {
        const Weights weights(tile, s);
        ROOFTREE_UNROLL
        for (int t = 0; t < T; t++) {
            const QuantisedRow row(x + t * stride, k);
            const int8_t* q = row.q + s * kBlock;
            const __m512 input_scale = _mm512_set1_ps(row.scale[s]);
            if constexpr (Weights::parts == 1) {
                const __m512 isum = _mm512_cvtepi32_ps(weights.dot(q, 0, 8, row.negated[s]));
                acc[t] = _mm512_fmadd_ps(_mm512_mul_ps(isum, input_scale), weights.scale[0], acc[t]);
            } else {
                const __m512 first = _mm512_cvtepi32_ps(weights.dot(q, 0, 4, row.negated_first[s]));
                const __m512 second = _mm512_cvtepi32_ps(weights.dot(q, 4, 8, row.negated[s] - row.negated_first[s]));
                acc[t] = _mm512_fmadd_ps(_mm512_mul_ps(first, input_scale), weights.scale[0], acc[t]);
                acc[t] = _mm512_fmadd_ps(_mm512_mul_ps(second, input_scale), weights.scale[1], acc[t]);
            }
            if constexpr (has_minimum(kFormat)) acc[t] = _mm512_fmadd_ps(weights.minimum, _mm512_set1_ps(row.sum[s]), acc[t]);
        }
    }
    ROOFTREE_UNROLL
    for (int t = 0; t < T; t++) _mm512_storeu_ps(out + t * kTileRows, acc[t]);
}

template <Format kFormat>
static void quantised_tile(const uint8_t* tile, int64_t k, const uint8_t* x, size_t stride, int m, float* out) {
    int t = 0;
    for (; t + 8 <= m; t += 8) quantised_tokens<kFormat, 8>(tile, k, x + t * stride, stride, out + t * kTileRows);
    for (; t + 4 <= m; t += 4) quantised_tokens<kFormat, 4>(tile, k, x + t * stride, stride, out + t * kTileRows);
    for (; t + 2 <= m; t += 2) quantised_tokens<kFormat, 2>(tile, k, x + t * stride, stride, out + t * kTileRows);
    if (t < m) quantised_tokens<kFormat, 1>(tile, k, x + t * stride, stride, out + t * kTileRows);
}

}  // namespace rooftree::avx512

#include "kernels_impl.h"

namespace rooftree {
const Kernels& avx512_kernels() { return avx512::kKernels; }
}  // namespace rooftree
