// The AVX-512 kernels, with BF16 weights and BF16 K and V multiplied in bf16: dpbf16 of stored pairs and what meets them
// (inputs, queries, weights of positions) rounded to pairs.
#define ROOFTREE_ISA avx512_bf16
#include "simd/avx512.h"

#include "exp_impl.h"
#include "kernels.h"
#include "kv_impl.h"
#include "tile_output.h"

namespace rooftree::avx512_bf16 {

// Two bf16 values of one row as a word, to be spread over all lanes.
static inline __m512bh pair_of(const void* p) {
    int32_t word;
    std::memcpy(&word, p, 4);
    return reinterpret_cast<__m512bh>(_mm512_set1_epi32(word));
}

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
    static Vector spread(const Factor* x) { return pair_of(x); }
    static F add(Vector x, Vector y, F sum) { return _mm512_dpbf16_ps(sum, y, x); }
    static void put(Factor* out, F v) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(v)));
    }
    // n: a multiple of 8.
    static void copy(const float* x, int n, Factor* out) {
        int i = 0;
        for (; i + N <= n; i += N) put(out + i, Simd::load(x + i));
        if (i < n) _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), reinterpret_cast<__m128i>(_mm256_cvtneps_pbh(_mm256_loadu_ps(x + i))));
    }
};

}  // namespace rooftree::avx512_bf16

#include "attention_impl.h"

namespace rooftree {

namespace {

static_assert(kBF16PairBytes == sizeof(__m512i));

using avx512_bf16::pair_of;

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

// 32 inputs of a row as 16 pairs; those from `rest` on count as zero.
inline __m512i pairs_of(const float* x, int64_t rest = 32) {
    const auto mask = [rest](int begin) {
        return static_cast<__mmask16>(rest >= begin + 16 ? 0xffff : rest > begin ? 0xffff >> (begin + 16 - rest) : 0);
    };
    return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(_mm512_maskz_loadu_ps(mask(16), x + 16), _mm512_maskz_loadu_ps(mask(0), x)));
}

// Four rows of 16 words to four columns each: lane l of column[c] holds word 4l + c of the rows.
inline void to_columns(const __m512i* row, __m512i* column) {
    const __m512i low01 = _mm512_unpacklo_epi32(row[0], row[1]), high01 = _mm512_unpackhi_epi32(row[0], row[1]);
    const __m512i low23 = _mm512_unpacklo_epi32(row[2], row[3]), high23 = _mm512_unpackhi_epi32(row[2], row[3]);
    column[0] = _mm512_unpacklo_epi64(low01, low23);
    column[1] = _mm512_unpackhi_epi64(low01, low23);
    column[2] = _mm512_unpacklo_epi64(high01, high23);
    column[3] = _mm512_unpackhi_epi64(high01, high23);
}

// Sixteen pairs of a whole panel's rows.
inline void put_panel(const __m512i* pairs, uint8_t* out) {
    __m512i upper[4], lower[4];
    to_columns(pairs, upper);
    to_columns(pairs + 4, lower);
    const __m512i first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), second = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    const auto put = [out](int pair, __m512i both) {  // and the pair four further
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 32 * pair), _mm512_castsi512_si256(both));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 32 * (pair + 4)), _mm512_extracti64x4_epi64(both, 1));
    };
    ROOFTREE_UNROLL
    for (int c = 0; c < 4; c++) {
        put(c, _mm512_permutex2var_epi64(upper[c], first, lower[c]));
        put(c + 8, _mm512_permutex2var_epi64(upper[c], second, lower[c]));
    }
}

// The same of one row out of `width`, the first `count` pairs.
inline void put_row(__m512i pairs, int width, int64_t count, uint8_t* out) {
    alignas(64) int32_t words[16];
    _mm512_store_si512(words, pairs);
    for (int64_t i = 0; i < count; i++) std::memcpy(out + 4 * i * width, words + i, 4);
}

void round_panel(const float* x, size_t stride, int width, int64_t count, uint8_t* out) {
    int64_t i = 0;
    for (; width == kPanelRows && i + 32 <= count; i += 32, out += 64 * kPanelRows) {
        __m512i pairs[kPanelRows];
        ROOFTREE_UNROLL
        for (int lane = 0; lane < kPanelRows; lane++) pairs[lane] = pairs_of(x + lane * stride + i);
        put_panel(pairs, out);
    }
    for (; i < count; i += 32, out += 64 * width)
        for (int lane = 0; lane < width; lane++)
            put_row(pairs_of(x + lane * stride + i, count - i), width, std::min<int64_t>(16, (count - i + 1) / 2), out + 4 * lane);
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
        changed.round_panel = round_panel;
        changed.attention = attention;
        return changed;
    }();
    return kernels;
}

}  // namespace rooftree
