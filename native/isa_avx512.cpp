// Kernels for AVX-512 (F, BW, DQ, VL) with VNNI. Integer products: dpbusd of unsigned weights and signed inputs.
#define ROOFTREE_ISA avx512
#define ROOFTREE_ISA_NAME "avx512"
#include "simd/avx512.h"

#include "kernels.h"
#include "tile_output.h"

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

    // What the weights' offset adds to a sum, taken out beforehand; `negated8`: -8 * sum of the inputs.
    static __m512i less_offset(int32_t negated8) {
        constexpr int offset = weight_offset(kFormat);
        if constexpr (offset == 0) return _mm512_setzero_si512();
        const __m512i eight = _mm512_set1_epi32(negated8);
        if constexpr (offset == 12) return _mm512_add_epi32(eight, _mm512_srai_epi32(eight, 1));
        return _mm512_slli_epi32(eight, __builtin_ctz(offset / 8));
    }
};

// Adds one step to the sums of G rows, from row `first` of a panel of T on. The rows take turns, input group by input
// group: integer products of one row wait for each other, and the scheduler does not see far enough to find the next row.
template <Format kFormat, int T, int G>
static inline void add_step(const Step<kFormat>& weights, const PanelStep& x, int first, __m512* acc) {
    constexpr int parts = Step<kFormat>::parts, groups = 8 / parts;
    ROOFTREE_UNROLL
    for (int part = 0; part < parts; part++) {
        __m512i sum[G];
        ROOFTREE_UNROLL
        for (int t = 0; t < G; t++) {
            const int32_t low = x.negated8_first[first + t], all = x.negated8[first + t];
            sum[t] = Step<kFormat>::less_offset(parts == 1 ? all : part == 0 ? low : all - low);
        }
        ROOFTREE_UNROLL
        for (int u = part * groups; u < (part + 1) * groups; u++)
            ROOFTREE_UNROLL
            for (int t = 0; t < G; t++)
                sum[t] = _mm512_dpbusd_epi32(sum[t], weights.w[u], _mm512_set1_epi32(four_inputs(x.q + (first + t) * kBlock + 4 * u)));
        ROOFTREE_UNROLL
        for (int t = 0; t < G; t++) {
            const __m512 scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(sum[t]), _mm512_set1_ps(x.scale[first + t]));
            acc[t] = _mm512_fmadd_ps(scaled, weights.scale[part], acc[t]);
        }
    }
    if constexpr (has_minimum(kFormat)) {
        ROOFTREE_UNROLL
        for (int t = 0; t < G; t++) acc[t] = _mm512_fmadd_ps(weights.minimum, _mm512_set1_ps(x.sum[first + t]), acc[t]);
    }
}

// One panel of T rows.
template <Format kFormat, int T>
static inline void quantised_tokens(const uint8_t* tile, int64_t k, const uint8_t* panel, const TileOutput& out, int first) {
    constexpr int G = T < 4 ? T : 4;
    __m512 acc[T];
    ROOFTREE_UNROLL
    for (int t = 0; t < T; t++) acc[t] = _mm512_setzero_ps();
    for (int64_t s = 0; s < k / kBlock; s++) {
        const Step<kFormat> weights(tile, s);
        const PanelStep x(panel, T, s);
        ROOFTREE_UNROLL
        for (int t = 0; t < T; t += G) add_step<kFormat, T, G>(weights, x, t, acc + t);
    }
    ROOFTREE_UNROLL
    for (int t = 0; t < T; t++) put(out, first + t, 0, acc[t]);
}

template <Format kFormat>
static void quantised_tile(const uint8_t* tile, int64_t k, const uint8_t* x, size_t stride, int m, const TileOutput& out) {
    int t = 0;
    for (; t + 8 <= m; t += 8) quantised_tokens<kFormat, 8>(tile, k, x + t * stride, out, t);
    if (m & 4) quantised_tokens<kFormat, 4>(tile, k, x + t * stride, out, t), t += 4;
    if (m & 2) quantised_tokens<kFormat, 2>(tile, k, x + t * stride, out, t), t += 2;
    if (m & 1) quantised_tokens<kFormat, 1>(tile, k, x + t * stride, out, t);
}

}  // namespace rooftree::avx512

#include "kernels_impl.h"

namespace rooftree {
const Kernels& avx512_kernels() { return avx512::kKernels; }
}  // namespace rooftree
