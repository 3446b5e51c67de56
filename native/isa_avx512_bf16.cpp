// The AVX-512 kernels, with BF16 weights and BF16 K and V multiplied in bf16: dpbf16 of stored pairs and what meets them
// (inputs, queries, weights of positions) rounded to pairs.
#define ROOFTREE_ISA avx512_bf16
#include "simd/avx512.h"

#include "exp_impl.h"
#include "kernels.h"
#include "kv_impl.h"
#include "tile_output.h"

namespace rooftree::avx512_bf16 {

// BF16 elements that are multiplied as they are stored.
struct PairedKv {
    uint16_t bits;
    static constexpr int depth = 2;
    static constexpr bool scaled = false;
};

template <>
struct Products<PairedKv> {
    using Factor = uint16_t;
    using Vector = __m512bh;
    static constexpr bool widened = false;
    static Vector load(const PairedKv* p) { return reinterpret_cast<__m512bh>(_mm512_loadu_si512(p)); }
    static Vector spread(const Factor* x) {
        int32_t word;
        std::memcpy(&word, x, 4);
        return reinterpret_cast<__m512bh>(_mm512_set1_epi32(word));
    }
    static F add(Vector x, Vector y, F sum) { return _mm512_dpbf16_ps(sum, y, x); }
    static void put(Factor* out, F v) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(v)));
    }
    // n: a multiple of 8.
    static const Factor* factors(const float* x, int n, void* room) {
        Factor* out = static_cast<Factor*>(room);
        int i = 0;
        for (; i + N <= n; i += N) put(out + i, Simd::load(x + i));
        if (i < n) _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), reinterpret_cast<__m128i>(_mm256_cvtneps_pbh(_mm256_loadu_ps(x + i))));
        return out;
    }
};

}  // namespace rooftree::avx512_bf16

#include "attention_impl.h"

namespace rooftree {

namespace {

static_assert(kBF16PairBytes == sizeof(__m512i));

// Two inputs of one row as a word, to be spread over all lanes.
inline __m512bh pair_of(const uint8_t* p) {
    int32_t word;
    std::memcpy(&word, p, 4);
    return reinterpret_cast<__m512bh>(_mm512_set1_epi32(word));
}

// One panel of T rows.
template <int T>
inline void bf16_tokens(const uint8_t* tile, int64_t k, const uint8_t* panel, const TileOutput& out, int first) {
    __m512 sum[T];
    ROOFTREE_UNROLL
    for (int t = 0; t < T; t++) sum[t] = _mm512_setzero_ps();
    for (int64_t i = 0; i < k; i += 2, tile += kBF16PairBytes, panel += 4 * T) {
        const __m512bh w = reinterpret_cast<__m512bh>(_mm512_loadu_si512(tile));
        ROOFTREE_UNROLL
        for (int t = 0; t < T; t++) sum[t] = _mm512_dpbf16_ps(sum[t], w, pair_of(panel + 4 * t));
    }
    ROOFTREE_UNROLL
    for (int t = 0; t < T; t++) avx512_bf16::put(out, first + t, 0, sum[t]);
}

void bf16_tile(const uint8_t* tile, int64_t k, const uint8_t* x, size_t stride, int m, const TileOutput& out) {
    int t = 0;
    for (; t + 8 <= m; t += 8) bf16_tokens<8>(tile, k, x + t * stride, out, t);
    if (m & 4) bf16_tokens<4>(tile, k, x + t * stride, out, t), t += 4;
    if (m & 2) bf16_tokens<2>(tile, k, x + t * stride, out, t), t += 2;
    if (m & 1) bf16_tokens<1>(tile, k, x + t * stride, out, t);
}

void tile_product(Format format, const uint8_t* tile, int64_t k, const uint8_t* x, size_t stride, int m, const TileOutput& out) {
    if (format == Format::BF16) return bf16_tile(tile, k, x, stride, m, out);
    avx512_kernels().tile_product(format, tile, k, x, stride, m, out);
}

// Sixteen pairs of one row, `width` words apart.
inline void put_pairs(const float* x, __mmask16 low, __mmask16 high, int width, int count, uint8_t* out) {
    const __m512bh rounded = _mm512_cvtne2ps_pbh(_mm512_maskz_loadu_ps(high, x + 16), _mm512_maskz_loadu_ps(low, x));
    alignas(64) int32_t words[16];
    _mm512_store_si512(words, reinterpret_cast<__m512i>(rounded));
    for (int i = 0; i < count; i++) std::memcpy(out + 4 * i * width, words + i, 4);
}

void round_rows(const uint8_t* x, size_t stride, int m, int64_t k, uint8_t* out) {
    for (int row = 0; row < m; row++) {
        const Panel panel = panel_of(row, m);
        const float* from = reinterpret_cast<const float*>(x + row * stride);
        uint8_t* to = out + panel.first_row * rounded_row_bytes(k) + 4 * (row - panel.first_row);
        int64_t i = 0;
        for (; i + 32 <= k; i += 32) put_pairs(from + i, 0xffff, 0xffff, panel.width, 16, to + 2 * i * panel.width);
        const int rest = static_cast<int>(k - i);
        const auto mask = [rest](int begin) { return static_cast<__mmask16>(rest > begin ? 0xffffffffu >> (32 - rest) >> begin : 0); };
        if (rest > 0) put_pairs(from + i, mask(0), mask(16), panel.width, (rest + 1) / 2, to + 2 * i * panel.width);
    }
}

void attention(KvFormat format, const AttentionArgs& args) {
    if (format == KvFormat::BF16) return avx512_bf16::attention_typed<avx512_bf16::PairedKv>(args);
    avx512_kernels().attention(format, args);
}

}  // namespace

const Kernels& avx512_bf16_kernels() {
    static const Kernels kernels = [] {
        Kernels changed = avx512_kernels();
        changed.name = "avx512_bf16";
        changed.tile_product = tile_product;
        changed.round_rows = round_rows;
        changed.attention = attention;
        return changed;
    }();
    return kernels;
}

}  // namespace rooftree
