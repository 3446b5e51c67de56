// Paged K and V of all layers.
#pragma once

#include <memory>
#include <vector>

#include "kernels.h"

namespace rooftree {

// [block][layer][K, V][kv_head]: of each head K as [head_dim][block_size], V as [block_size][head_dim]. Positions are
// the lanes when scores are computed, channels when values are summed: neither needs a horizontal reduction. BF16 lies in
// pairs of channels (K) and of positions (V), as products of pairs read it: [head_dim / 2][block_size][2] and
// [block_size / 2][head_dim][2]. All layers of a block lie together, so that a block first used touches one stretch of
// fresh memory, not one in every layer.
class KvCache {
   public:
    KvCache(int layers, int kv_heads, int head_dim, int block_size, KvFormat format, int64_t num_blocks);

    static size_t bytes_per_block(int layers, int kv_heads, int head_dim, int block_size, KvFormat format);

    // Writes to all of it, as if it had been in use: memory that was never written costs nothing to read.
    void fill();

    // In block 0; `block_stride` bytes further for each block.
    uint8_t* k(int layer, int kv_head) const { return memory_.data() + (2 * layer * kv_heads_ + kv_head) * head_bytes(); }
    uint8_t* v(int layer, int kv_head) const { return k(layer, kv_head) + kv_heads_ * head_bytes(); }
    size_t block_stride() const { return static_cast<size_t>(2) * layers_ * kv_heads_ * head_bytes(); }
    int block_size() const { return block_size_; }
    KvFormat format() const { return format_; }

   private:
    size_t head_bytes() const { return kv_head_bytes(format_, head_dim_, block_size_); }

    int layers_, kv_heads_, head_dim_, block_size_;
    KvFormat format_;
    Buffer memory_;
};

}  // namespace rooftree
