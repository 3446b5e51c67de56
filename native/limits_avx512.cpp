// Loops with AVX-512 and VNNI.
#define ROOFTREE_ISA avx512
#include <immintrin.h>

#include "limits.h"
#include "limits_impl.h"

namespace rooftree::avx512 {

namespace {

typedef uint64_t Words __attribute__((vector_size(64)));

void read(const uint8_t* data, size_t bytes) { read_words<Words>(data, bytes); }

void fp32(int64_t rounds) {
    chains(rounds, _mm512_setzero_ps(), _mm512_set1_ps(0.999f), _mm512_set1_ps(1e-3f),
           [](__m512 sum, __m512 x, __m512 y) { return _mm512_fmadd_ps(sum, x, y); });
}

void dot_products(int64_t rounds) {
    chains(rounds, _mm512_setzero_si512(), _mm512_set1_epi8(3), _mm512_set1_epi8(-2),
           [](__m512i sum, __m512i w, __m512i x) { return _mm512_dpbusd_epi32(sum, w, x); });
}

}  // namespace

}  // namespace rooftree::avx512

namespace rooftree {
const LimitLoops& avx512_limits() {
    static const LimitLoops loops{
        avx512::read,
        {"fmadd, 512 bits", 2 * 16 * avx512::kChains, avx512::fp32},
        {{"dpbusd, 512 bits", 2 * 64 * avx512::kChains, avx512::dot_products}},
    };
    return loops;
}
}  // namespace rooftree
