// Loops with AVX2 and FMA.
#define ROOFTREE_ISA avx2
#include <immintrin.h>

#include "limits.h"
#include "limits_impl.h"

namespace rooftree::avx2 {

namespace {

typedef uint64_t Words __attribute__((vector_size(32)));

void read(const uint8_t* data, size_t bytes) { read_words<Words>(data, bytes); }

void fp32(int64_t rounds) {
    chains(rounds, _mm256_setzero_ps(), _mm256_set1_ps(0.999f), _mm256_set1_ps(1e-3f),
           [](__m256 sum, __m256 x, __m256 y) { return _mm256_fmadd_ps(sum, x, y); });
}

void widened(int64_t rounds) {
    chains(rounds, _mm256_setzero_si256(), _mm256_set1_epi8(3), _mm256_set1_epi8(-2), [](__m256i sum, __m256i w, __m256i x) {
        const __m256i pairs = _mm256_maddubs_epi16(w, x);
        return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    });
}

void in_16_bits(int64_t rounds) {
    chains(rounds, _mm256_setzero_si256(), _mm256_set1_epi8(3), _mm256_set1_epi8(-2), [](__m256i sum, __m256i w, __m256i x) {
        return _mm256_add_epi16(sum, _mm256_maddubs_epi16(w, x));
    });
}

}  // namespace

}  // namespace rooftree::avx2

namespace rooftree {
const LimitLoops& avx2_limits() {
    static const LimitLoops loops{
        avx2::read,
        {"fmadd, 256 bits", 2 * 8 * avx2::kChains, avx2::fp32},
        {
            {"maddubs + madd + add32, 256 bits", 2 * 32 * avx2::kChains, avx2::widened},
            {"maddubs + add16, 256 bits", 2 * 32 * avx2::kChains, avx2::in_16_bits},
        },
    };
    return loops;
}
}  // namespace rooftree
