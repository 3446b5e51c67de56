// Kernels for AVX2 + FMA + F16C. Integer products: maddubs of unsigned weights and signed inputs.
#define ROOFTREE_ISA avx2
#define ROOFTREE_ISA_NAME "avx2"
#include "simd/avx2.h"

#include "kernels.h"
#include "quantised_row.h"

namespace rooftree::avx2 {

static inline __m256i load256(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
static inline __m256 load_halves(const uint8_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

// Eight of the tile's rows for one block of 32 inputs, unpacked once for several tokens.
template <bool kMin>
struct Q4 {
    static constexpr Format format = kMin ? Format::Q4_1 : Format::Q4_0;
    static constexpr bool has_min = kMin;
    static constexpr int header = kMin ? 64 : 32;
    __m256i w[8];

    Q4(const uint8_t* step, int half) {
        const __m256i mask = _mm256_set1_epi8(15);
        ROOFTREE_UNROLL
        for (int g = 0; g < 4; g++) {
            const __m256i bytes = load256(step + header + 64 * g + 32 * half);
            w[g] = _mm256_and_si256(bytes, mask);
            w[g + 4] = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), mask);
        }
    }

    // Eight products of a nibble pair and an input pair, at most 8 * 2 * 15 * 127 = 30,480, fit 16 bits.
    __m256i dot(const int8_t* q, int32_t negated) const {
        __m256i sum = _mm256_maddubs_epi16(w[0], _mm256_set1_epi32(four_inputs(q)));
        ROOFTREE_UNROLL
        for (int g = 1; g < 8; g++)
            sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(w[g], _mm256_set1_epi32(four_inputs(q + 4 * g))));
        const __m256i isum = _mm256_madd_epi16(sum, _mm256_set1_epi16(1));
        return kMin ? isum : _mm256_add_epi32(isum, _mm256_slli_epi32(_mm256_set1_epi32(negated), 3));
    }
};

// Signed weights: |w| times the input carrying w's sign. A pair reaches 2 * 128 * 127 = 32,512: widened at once.
struct Q8 {
    static constexpr Format format = Format::Q8_0;
    static constexpr bool has_min = false;
    const uint8_t* bytes;

    Q8(const uint8_t* step, int half) : bytes(step + 32 + 32 * half) {}

    __m256i dot(const int8_t* q, int32_t) const {
        __m256i sum = _mm256_setzero_si256();
        ROOFTREE_UNROLL
        for (int g = 0; g < 8; g++) {
            const __m256i w = _mm256_xor_si256(load256(bytes + 64 * g), _mm256_set1_epi8(-128));
            const __m256i x = _mm256_sign_epi8(_mm256_set1_epi32(four_inputs(q + 4 * g)), w);
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_abs_epi8(w), x), _mm256_set1_epi16(1)));
        }
        return sum;
    }
};

template <typename Q, int T, int kHalves>
static inline void quantised_tokens(const uint8_t* tile, int64_t k, int first_half, const uint8_t* x, size_t stride, float* out) {
    __m256 acc[kHalves][T];
    ROOFTREE_UNROLL
    for (int h = 0; h < kHalves; h++)
        ROOFTREE_UNROLL
        for (int t = 0; t < T; t++) acc[h][t] = _mm256_setzero_ps();
    const size_t step_bytes = tile_step_bytes(Q::format);
    for (int64_t s = 0; s < k / kBlock; s++) {
        const uint8_t* step = tile + s * step_bytes;
        ROOFTREE_UNROLL
        for (int h = 0; h < kHalves; h++) {
            const int half = first_half + h;
            const Q weights(step, half);
            const __m256 scale = load_halves(step + 16 * half);
            ROOFTREE_UNROLL
            for (int t = 0; t < T; t++) {
                const QuantisedRow row(x + t * stride, k);
                const __m256 isum = _mm256_cvtepi32_ps(weights.dot(row.q + s * kBlock, row.negated[s]));
                acc[h][t] = _mm256_fmadd_ps(_mm256_mul_ps(isum, _mm256_broadcast_ss(row.scale + s)), scale, acc[h][t]);
                if (Q::has_min)
                    acc[h][t] = _mm256_fmadd_ps(load_halves(step + 32 + 16 * half), _mm256_broadcast_ss(row.sum + s), acc[h][t]);
            }
        }
    }
    ROOFTREE_UNROLL
    for (int h = 0; h < kHalves; h++)
        ROOFTREE_UNROLL
        for (int t = 0; t < T; t++) _mm256_storeu_ps(out + t * kTileRows + 8 * (first_half + h), acc[h][t]);
}

template <typename Q>
static void quantised_tile(const uint8_t* tile, int64_t k, const uint8_t* x, size_t stride, int m, float* out) {
    int t = 0;
    for (; t + 4 <= m; t += 4)
        for (int half = 0; half < 2; half++)
            quantised_tokens<Q, 4, 1>(tile, k, half, x + t * stride, stride, out + t * kTileRows);
    if (t + 2 <= m) {
        quantised_tokens<Q, 2, 2>(tile, k, 0, x + t * stride, stride, out + t * kTileRows);
        t += 2;
    }
    if (t < m) quantised_tokens<Q, 1, 2>(tile, k, 0, x + t * stride, stride, out + t * kTileRows);
}

}  // namespace rooftree::avx2

#include "kernels_impl.h"

namespace rooftree {
const Kernels& avx2_kernels() { return avx2::kKernels; }
}  // namespace rooftree
