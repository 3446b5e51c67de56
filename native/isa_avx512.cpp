// Kernels for AVX-512 (F, BW, DQ, VL) with VNNI. Integer products: dpbusd of unsigned weights and signed inputs.
#define ROOFTREE_ISA avx512
#define ROOFTREE_ISA_NAME "avx512"
#include "simd/avx512.h"

#include "kernels.h"
#include "quantised_row.h"

namespace rooftree::avx512 {

static inline __m512i load512(const uint8_t* p) { return _mm512_loadu_si512(p); }
static inline __m512 load_halves(const uint8_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

// All sixteen rows for one block of 32 inputs, unpacked once for several tokens.
template <bool kMin>
struct Q4 {
    static constexpr Format format = kMin ? Format::Q4_1 : Format::Q4_0;
    static constexpr bool has_min = kMin;
    static constexpr int offset_bits = 3;
    static constexpr int header = kMin ? 64 : 32;
    __m512i w[8];

    explicit Q4(const uint8_t* step) {
        const __m512i mask = _mm512_set1_epi8(15);
        ROOFTREE_UNROLL
        for (int g = 0; g < 4; g++) {
            const __m512i bytes = load512(step + header + 64 * g);
            w[g] = _mm512_and_si512(bytes, mask);
            w[g + 4] = _mm512_and_si512(_mm512_srli_epi16(bytes, 4), mask);
        }
    }
};

struct Q8 {
    static constexpr Format format = Format::Q8_0;
    static constexpr bool has_min = false;
    static constexpr int offset_bits = 7;
    __m512i w[8];

    explicit Q8(const uint8_t* step) {
        ROOFTREE_UNROLL
        for (int g = 0; g < 8; g++) w[g] = load512(step + 32 + 64 * g);
    }
};

template <typename Q, int T>
static inline void quantised_tokens(const uint8_t* tile, int64_t k, const uint8_t* x, size_t stride, float* out) {
    __m512 acc[T];
    ROOFTREE_UNROLL
    for (int t = 0; t < T; t++) acc[t] = _mm512_setzero_ps();
    const size_t step_bytes = tile_step_bytes(Q::format);
    const int64_t steps = k / kBlock;
    for (int64_t s = 0; s < steps; s++) {
        const uint8_t* step = tile + s * step_bytes;
        const Q weights(step);
        const __m512 scale = load_halves(step);
        const __m512 minimum = Q::has_min ? load_halves(step + 32) : _mm512_setzero_ps();
        ROOFTREE_UNROLL
        for (int t = 0; t < T; t++) {
            const QuantisedRow row(x + t * stride, k);
            const int8_t* q = row.q + s * kBlock;
            __m512i isum = Q::has_min ? _mm512_setzero_si512()
                                      : _mm512_slli_epi32(_mm512_set1_epi32(row.negated[s]), Q::offset_bits);
            ROOFTREE_UNROLL
            for (int g = 0; g < 8; g++) isum = _mm512_dpbusd_epi32(isum, weights.w[g], _mm512_set1_epi32(four_inputs(q + 4 * g)));
            const __m512 product = _mm512_mul_ps(_mm512_cvtepi32_ps(isum), _mm512_set1_ps(row.scale[s]));
            acc[t] = _mm512_fmadd_ps(product, scale, acc[t]);
            if (Q::has_min) acc[t] = _mm512_fmadd_ps(minimum, _mm512_set1_ps(row.sum[s]), acc[t]);
        }
    }
    ROOFTREE_UNROLL
    for (int t = 0; t < T; t++) _mm512_storeu_ps(out + t * kTileRows, acc[t]);
}

template <typename Q>
static void quantised_tile(const uint8_t* tile, int64_t k, const uint8_t* x, size_t stride, int m, float* out) {
    int t = 0;
    for (; t + 8 <= m; t += 8) quantised_tokens<Q, 8>(tile, k, x + t * stride, stride, out + t * kTileRows);
    for (; t + 4 <= m; t += 4) quantised_tokens<Q, 4>(tile, k, x + t * stride, stride, out + t * kTileRows);
    for (; t + 2 <= m; t += 2) quantised_tokens<Q, 2>(tile, k, x + t * stride, stride, out + t * kTileRows);
    if (t < m) quantised_tokens<Q, 1>(tile, k, x + t * stride, stride, out + t * kTileRows);
}

}  // namespace rooftree::avx512

#include "kernels_impl.h"

namespace rooftree {
const Kernels& avx512_kernels() { return avx512::kKernels; }
}  // namespace rooftree
