// The function table that an instruction set provides. All row kernels treat rows independently and sum in input
// order, so a row's result never depends on its neighbours.
#pragma once

#include <cstddef>
#include <cstdint>

#include "pack.h"
#include "quantised_panel.h"

// Loops over a register tile must vanish: an array that is indexed in a remaining loop goes to memory.
#define ROOFTREE_UNROLL _Pragma("GCC unroll 16")

namespace rooftree {

// Positions whose scores are normalised together. Contexts are split at multiples of it, wherever a step starts.
constexpr int kPartition = 256;
// K and V are read in groups of 16 positions: block sizes are multiples of it.
constexpr int kKvGroup = 16;
// Largest head_dim.
constexpr int kMaxHeadDim = 512;
// Query rows that share one pass over a KV head.
constexpr int kMaxAttentionRows = 48;
// Groups that are widened to float at a time: they stay in the first-level cache while all rows use them.
constexpr int kWideGroups = 2;

enum class KvFormat : int { F16 = 0, F32 = 1, I8 = 2, F8 = 3, BF16 = 4 };

// Bytes of one head's K (or V) in one block. The 8-bit formats append a float scale for each position: with a scale
// shared by positions, an element would depend on which tokens came after it, and so an answer on its chunking.
inline size_t kv_head_bytes(KvFormat format, int head_dim, int block_size) {
    const size_t elements = static_cast<size_t>(head_dim) * block_size;
    switch (format) {
        case KvFormat::F16: case KvFormat::BF16: return 2 * elements;
        case KvFormat::F32: return 4 * elements;
        case KvFormat::I8: case KvFormat::F8: return elements + sizeof(float) * block_size;
    }
    return 0;
}

// One KV head of one sequence, for up to kMaxAttentionRows query rows.
struct AttentionArgs {
    int rows;
    int head_dim;
    const float* q;           // [rows / group, group, head_dim], already scaled; q_stride floats from one group to the next
    int group;
    size_t q_stride;
    const int32_t* last;      // [rows], last position each row sees
    int window;               // positions a row sees, itself included; 0: all
    const int32_t* blocks;    // block table of the sequence
    int block_size;
    const uint8_t* k;         // head's K in block 0: [head_dim, block_size]; BF16: [head_dim / 2, block_size, 2]
    const uint8_t* v;         // head's V in block 0: [block_size, head_dim]; BF16: [block_size / 2, head_dim, 2]
    size_t block_stride;      // bytes from a block to the next, for K and V
    int first_partition, end_partition;
    int next_partition;       // the one that this thread will probably read after them
    float* scratch;           // attention_scratch_floats(head_dim)
    // The state: of all partitions together, or of each its own, `state_stride` floats after the one before.
    size_t state_stride;      // 0: one state
    float* m;                 // [rows] running maximum, updated; start: -inf
    float* l;                 // [rows] running sum of exponentials; start: 0
    float* acc;               // [rows, head_dim] running weighted sum of V; start: 0
};

// Scores, sums of V, K or V widened, queries.
inline size_t attention_scratch_floats(int head_dim) {
    return static_cast<size_t>(kMaxAttentionRows) * (kPartition + 2 * head_dim) + kWideGroups * kKvGroup * head_dim;
}

// Where the products of a tile's 16 rows with a token go: y[t * stride + r].
struct TileOutput {
    float* y;
    size_t stride;
    const float* bias;  // [16], added; null: none
    bool accumulate;    // add to what is there
};

inline size_t rounded_row_bytes(int64_t k) { return static_cast<size_t>(k + 1) / 2 * 2 * sizeof(uint16_t); }

struct Kernels {
    const char* name;

    // out(t, r) = sum_k tile[r][k] * x[t][k] for t < m. x: float rows, or whole panels of quantised or rounded rows;
    // stride: bytes of a row.
    void (*tile_product)(Format format, const uint8_t* tile, int64_t k, const uint8_t* x, size_t stride, int m,
                         const TileOutput& out);

    // Null where BF16 weights meet floats. Else they meet panels [k / 2][width][2] of bf16, an odd last input with a zero
    // beside it: those of `count` inputs of a panel's rows, which lie `stride` floats apart.
    void (*round_panel)(const float* x, size_t stride, int width, int64_t count, uint8_t* out);
    // y = x / rms(x) * weight.
    void (*rms_norm)(const float* x, const float* weight, float eps, int64_t n, float* y);
    // Blocks [first, first + count) of a row: q = round(x / scale), scale = max|x| / 127. x: their 32 * count inputs.
    void (*quantise)(const float* x, int64_t first, int64_t count, const QuantisedRow& out);
    // y = silu(gate) * up.
    void (*silu_mul)(const float* gate, const float* up, int64_t n, float* y);
    // Half-split rotation in place; cos and sin: [head_dim / 2]; result multiplied by `scale`.
    void (*rope)(float* x, const float* cos, const float* sin, int head_dim, float scale);

    // One token's K and V of one head into the cache (see AttentionArgs for the layout); `slot` within the block.
    void (*write_kv)(KvFormat format, const float* k, const float* v, int head_dim, int block_size, int slot,
                     uint8_t* k_block, uint8_t* v_block);
    void (*attention)(KvFormat format, const AttentionArgs& args);
    // Merges a later partition's (m, l, acc) into an earlier state, as `attention` does between partitions.
    void (*merge_partition)(float m, float l, const float* acc, int head_dim, float* m_out, float* l_out, float* acc_out);

    // Sampling. `max_finite`: largest value; NaN if any value is NaN or infinite.
    float (*max_finite)(const float* x, int64_t n);
    // p = exp((x - shift) / temperature); returns the sum (p may be null).
    double (*exp_sum)(const float* x, int64_t n, float shift, float temperature, float* p);
};

const Kernels& portable_kernels();
#if defined(ROOFTREE_X86)
const Kernels& avx2_kernels();
const Kernels& avx512_kernels();
const Kernels& avx512_bf16_kernels();
#endif

}  // namespace rooftree
