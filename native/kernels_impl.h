// The kernels that all instruction sets share, in terms of `Simd`. Included once per instruction set, after its
// simd/ header and its tile products, inside no namespace.
#pragma once

#include <cmath>
#include <limits>
#include <type_traits>

#include "kernels.h"
#include "exp_impl.h"
#include "kv_impl.h"
#include "attention_impl.h"

namespace rooftree::ROOFTREE_ISA {

static void rms_norm(const float* x, const float* weight, float eps, int64_t n, float* y) {
    F sum = Simd::zero();
    int64_t i = 0;
    for (; i + N <= n; i += N) {
        const F v = Simd::load(x + i);
        sum = Simd::fma(v, v, sum);
    }
    float total = Simd::reduce_add(sum);
    for (int64_t j = i; j < n; j++) total += x[j] * x[j];
    const float inverse = 1.0f / std::sqrt(total / static_cast<float>(n) + eps);
    const F scale = Simd::set1(inverse);
    for (i = 0; i + N <= n; i += N) Simd::store(y + i, Simd::load(x + i) * scale * Simd::load(weight + i));
    for (; i < n; i++) y[i] = x[i] * inverse * weight[i];
}

static void quantise(const float* x, int64_t first, int64_t count, const QuantisedRow& out) {
    for (int64_t i = 0; i < count; i++) {
        const float* block = x + i * kBlock;
        const MutablePanelStep step(out.panel, out.width, first + i);
        F largest = Simd::zero();
        for (int j = 0; j < kBlock; j += N) largest = Simd::max(largest, Simd::abs(Simd::load(block + j)));
        const float amax = Simd::reduce_max(largest);
        const F inverse = Simd::set1(amax >= kLeastMagnitude ? 127.0f / amax : 0.0f);
        F half[2] = {Simd::zero(), Simd::zero()};  // sums of small whole numbers: exact in any order
        for (int j = 0; j < kBlock; j += N) {
            const F rounded = Simd::round(Simd::load(block + j) * inverse);
            Simd::store_int8(step.q + out.lane * kBlock + j, rounded);
            half[j / 16] = half[j / 16] + rounded;
        }
        const float low = Simd::reduce_add(half[0]), sum = low + Simd::reduce_add(half[1]);
        const bool finite = sum == sum;  // a NaN or infinite input must spoil the products, not vanish in a comparison
        const float scale = finite ? amax / 127.0f : sum;
        step.scale[out.lane] = scale;
        step.sum[out.lane] = scale * sum;
        step.negated8[out.lane] = finite ? -8 * static_cast<int32_t>(sum) : 0;
        step.negated8_first[out.lane] = finite ? -8 * static_cast<int32_t>(low) : 0;
    }
}

static void silu_mul(const float* gate, const float* up, int64_t n, float* y) {
    const F one = Simd::set1(1.0f);
    int64_t i = 0;
    for (; i + N <= n; i += N) {
        const F g = Simd::load(gate + i);
        Simd::store(y + i, g / (one + vexp(Simd::zero() - g)) * Simd::load(up + i));
    }
    for (; i < n; i++) y[i] = gate[i] / (1.0f + sexp(-gate[i])) * up[i];
}

static void rope(float* x, const float* cos, const float* sin, int head_dim, float scale) {
    const int half = head_dim / 2;
    int i = 0;
    const F factor = Simd::set1(scale);
    for (; i + N <= half; i += N) {
        const F a = Simd::load(x + i), b = Simd::load(x + half + i);
        const F c = Simd::load(cos + i), s = Simd::load(sin + i);
        Simd::store(x + i, (a * c - b * s) * factor);
        Simd::store(x + half + i, (b * c + a * s) * factor);
    }
    for (; i < half; i++) {
        const float a = x[i], b = x[half + i];
        x[i] = (a * cos[i] - b * sin[i]) * scale;
        x[half + i] = (b * cos[i] + a * sin[i]) * scale;
    }
}

// ---- KV cache ---
static void write_kv(KvFormat format, const float* k, const float* v, int head_dim, int block_size, int slot,
                     uint8_t* k_block, uint8_t* v_block) {
    switch (format) {
        case KvFormat::F16: return write_kv_typed<HalfKv>(k, v, head_dim, block_size, slot, k_block, v_block);
        case KvFormat::F32: return write_kv_typed<FloatKv>(k, v, head_dim, block_size, slot, k_block, v_block);
        case KvFormat::I8: return write_kv_typed<Int8Kv>(k, v, head_dim, block_size, slot, k_block, v_block);
        case KvFormat::F8: return write_kv_typed<Fp8Kv>(k, v, head_dim, block_size, slot, k_block, v_block);
        case KvFormat::BF16: return write_kv_typed<Bf16Kv>(k, v, head_dim, block_size, slot, k_block, v_block);
    }
}

static void attention(KvFormat format, const AttentionArgs& args) {
    switch (format) {
        case KvFormat::F16: return attention_typed<HalfKv>(args);
        case KvFormat::F32: return attention_typed<FloatKv>(args);
        case KvFormat::I8: return attention_typed<Int8Kv>(args);
        case KvFormat::F8: return attention_typed<Fp8Kv>(args);
        case KvFormat::BF16: return attention_typed<Bf16Kv>(args);
    }
}

// ---- sampling -------------------------------------------------------------------------------------------------

static float max_finite(const float* x, int64_t n) {
    F largest = Simd::set1(-std::numeric_limits<float>::infinity()), poison = Simd::zero();
    int64_t i = 0;
    for (; i + N <= n; i += N) {
        const F v = Simd::load(x + i);
        largest = Simd::max(largest, v);
        poison = Simd::fma(v, Simd::zero(), poison);  // NaN if v is NaN or infinite
    }
    float m = Simd::reduce_max(largest), bad = Simd::reduce_add(poison);
    for (; i < n; i++) {
        m = x[i] > m ? x[i] : m;
        bad += x[i] * 0.0f;
    }
    return bad == 0.0f ? m : std::numeric_limits<float>::quiet_NaN();
}

static double exp_sum(const float* x, int64_t n, float shift, float temperature, float* p) {
    constexpr int64_t kRun = 1024;  // runs are summed in float lanes, their totals in double
    double total = 0.0;
    for (int64_t begin = 0; begin < n; begin += kRun) {
        const int64_t end = begin + kRun < n ? begin + kRun : n;
        F sum = Simd::zero();
        int64_t i = begin;
        for (; i + N <= end; i += N) {
            const F e = vexp((Simd::load(x + i) - Simd::set1(shift)) / Simd::set1(temperature));
            if (p) Simd::store(p + i, e);
            sum = sum + e;
        }
        total += Simd::reduce_add(sum);
        for (; i < end; i++) {
            const float e = sexp((x[i] - shift) / temperature);
            if (p) p[i] = e;
            total += e;
        }
    }
    return total;
}

// ---- float tile product ---------------------------------------------------------------------------------------

// Vectors of a tile's rows.
constexpr int kVectors = kTileRows / N;

// How a format's tiles are read: `inputs` at a time, whose weights for rows [j * N, (j + 1) * N) go to w[0..inputs)[j].
struct AsF32 {
    static constexpr int inputs = 1;
    static constexpr size_t bytes = sizeof(float) * kTileRows;
    static void load(const uint8_t* p, int j, F (*w)[kVectors]) { w[0][j] = Simd::load(reinterpret_cast<const float*>(p) + j * N); }
};
struct AsF16 {
    static constexpr int inputs = 1;
    static constexpr size_t bytes = sizeof(uint16_t) * kTileRows;
    static void load(const uint8_t* p, int j, F (*w)[kVectors]) { w[0][j] = Simd::load_f16(reinterpret_cast<const uint16_t*>(p) + j * N); }
};
struct AsBF16 {
    static constexpr int inputs = 2;
    static constexpr size_t bytes = kBF16PairBytes;
    static void load(const uint8_t* p, int j, F (*w)[kVectors]) {
        Simd::load_bf16_pairs(reinterpret_cast<const uint16_t*>(p) + 2 * j * N, &w[0][j], &w[1][j]);
    }
};

template <typename W, int T>
static inline void float_tokens(const uint8_t* tile, int64_t k, const uint8_t* x, size_t stride, const TileOutput& out, int first) {
    constexpr int V = kVectors;
    F sum[T][V];
    ROOFTREE_UNROLL
    for (int t = 0; t < T; t++)
        ROOFTREE_UNROLL
        for (int j = 0; j < V; j++) sum[t][j] = Simd::zero();
    for (int64_t i = 0; i < k; i += W::inputs, tile += W::bytes) {
        F w[W::inputs][V];
        ROOFTREE_UNROLL
        for (int j = 0; j < V; j++) W::load(tile, j, w);
        ROOFTREE_UNROLL
        for (int u = 0; u < W::inputs; u++) {
            if (u > 0 && i + u == k) break;  // an odd last input
            ROOFTREE_UNROLL
            for (int t = 0; t < T; t++) {
                const F value = Simd::set1(reinterpret_cast<const float*>(x + t * stride)[i + u]);
                ROOFTREE_UNROLL
                for (int j = 0; j < V; j++) sum[t][j] = Simd::fma(value, w[u][j], sum[t][j]);
            }
        }
    }
    ROOFTREE_UNROLL
    for (int t = 0; t < T; t++)
        ROOFTREE_UNROLL
        for (int j = 0; j < V; j++) put(out, first + t, j * N, sum[t][j]);
}

// Each step of 128 inputs is summed on its own and then scaled: the scale may change from step to step.
template <int T>
static inline void fp8_tokens(const uint8_t* tile, int64_t k, const uint8_t* x, size_t stride, const TileOutput& out, int first) {
    constexpr int V = kVectors;
    F total[T][V];
    ROOFTREE_UNROLL
    for (int t = 0; t < T; t++)
        ROOFTREE_UNROLL
        for (int j = 0; j < V; j++) total[t][j] = Simd::zero();
    for (int64_t begin = 0; begin < k; begin += kFp8Step, tile += kFp8StepBytes) {
        const int64_t end = begin + kFp8Step < k ? begin + kFp8Step : k;
        const uint8_t* codes = tile + sizeof(float) * kTileRows;
        F sum[T][V];
        ROOFTREE_UNROLL
        for (int t = 0; t < T; t++)
            ROOFTREE_UNROLL
            for (int j = 0; j < V; j++) sum[t][j] = Simd::zero();
        for (int64_t i = begin; i < end; i++, codes += kTileRows) {
            F w[V];
            ROOFTREE_UNROLL
            for (int j = 0; j < V; j++) w[j] = Simd::load_e4m3_unscaled(codes + j * N);
            ROOFTREE_UNROLL
            for (int t = 0; t < T; t++) {
                const F value = Simd::set1(reinterpret_cast<const float*>(x + t * stride)[i]);
                ROOFTREE_UNROLL
                for (int j = 0; j < V; j++) sum[t][j] = Simd::fma(value, w[j], sum[t][j]);
            }
        }
        ROOFTREE_UNROLL
        for (int j = 0; j < V; j++) {
            const F scale = Simd::load(reinterpret_cast<const float*>(tile) + j * N);
            ROOFTREE_UNROLL
            for (int t = 0; t < T; t++) total[t][j] = Simd::fma(sum[t][j], scale, total[t][j]);
        }
    }
    ROOFTREE_UNROLL
    for (int t = 0; t < T; t++)
        ROOFTREE_UNROLL
        for (int j = 0; j < V; j++) put(out, first + t, j * N, total[t][j]);
}

static void fp8_tile(const uint8_t* tile, int64_t k, const uint8_t* x, size_t stride, int m, const TileOutput& out) {
    int t = 0;
    for (; t + 3 <= m; t += 3) fp8_tokens<3>(tile, k, x + t * stride, stride, out, t);
    for (; t < m; t++) fp8_tokens<1>(tile, k, x + t * stride, stride, out, t);
}

template <typename W>
static void float_tile(const uint8_t* tile, int64_t k, const uint8_t* x, size_t stride, int m, const TileOutput& out) {
    int t = 0;
    for (; t + 6 <= m; t += 6) float_tokens<W, 6>(tile, k, x + t * stride, stride, out, t);
    for (; t + 4 <= m; t += 4) float_tokens<W, 4>(tile, k, x + t * stride, stride, out, t);
    for (; t + 2 <= m; t += 2) float_tokens<W, 2>(tile, k, x + t * stride, stride, out, t);
    if (t < m) float_tokens<W, 1>(tile, k, x + t * stride, stride, out, t);
}

static void tile_product(Format format, const uint8_t* tile, int64_t k, const uint8_t* x, size_t stride, int m, const TileOutput& out) {
    switch (format) {
        case Format::F32: return float_tile<AsF32>(tile, k, x, stride, m, out);
        case Format::F16: return float_tile<AsF16>(tile, k, x, stride, m, out);
        case Format::BF16: return float_tile<AsBF16>(tile, k, x, stride, m, out);
        case Format::Q4_0: return quantised_tile<Format::Q4_0>(tile, k, x, stride, m, out);
        case Format::Q4_1: return quantised_tile<Format::Q4_1>(tile, k, x, stride, m, out);
        case Format::Q5_0: return quantised_tile<Format::Q5_0>(tile, k, x, stride, m, out);
        case Format::Q5_1: return quantised_tile<Format::Q5_1>(tile, k, x, stride, m, out);
        case Format::Q8_0: return quantised_tile<Format::Q8_0>(tile, k, x, stride, m, out);
        case Format::Q4_K: return quantised_tile<Format::Q4_K>(tile, k, x, stride, m, out);
        case Format::Q5_K: return quantised_tile<Format::Q5_K>(tile, k, x, stride, m, out);
        case Format::Q6_K: return quantised_tile<Format::Q6_K>(tile, k, x, stride, m, out);
        case Format::F8_E4M3: return fp8_tile(tile, k, x, stride, m, out);
        case Format::MXFP4: return quantised_tile<Format::MXFP4>(tile, k, x, stride, m, out);
        case Format::NVFP4: return quantised_tile<Format::NVFP4>(tile, k, x, stride, m, out);
    }
}

static const Kernels kKernels = {
    ROOFTREE_ISA_NAME, tile_product, nullptr, rms_norm, quantise, silu_mul, rope, write_kv, attention,
    merge_partition, max_finite, exp_sum,
};

}  // namespace rooftree::ROOFTREE_ISA
