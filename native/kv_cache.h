// Paged K and V of all layers.
#pragma once

#include <memory>
#include <vector>

#include "kernels.h"

namespace rooftree {

// Per layer and block: K as [kv_head][head_dim][block_size], V as [kv_head][block_size][head_dim]. Positions are the
// lanes when scores are computed, channels when values are summed: neither needs a horizontal reduction.
class KvCache {
   public:
    KvCache(int layers, int kv_heads, int head_dim, int block_size, KvFormat format, int64_t num_blocks);

    static size_t bytes_per_block(int layers, int kv_heads, int head_dim, int block_size, KvFormat format);

    uint8_t* k(int layer, int kv_head) const { return layer_data(layer) + kv_head * head_bytes(); }
    uint8_t* v(int layer, int kv_head) const { return k(layer, kv_head) + num_blocks_ * block_stride(); }
    size_t block_stride() const { return static_cast<size_t>(kv_heads_) * head_bytes(); }
    int block_size() const { return block_size_; }
    KvFormat format() const { return format_; }

   private:
    size_t head_bytes() const { return kv_head_bytes(format_, head_dim_, block_size_); }
    uint8_t* layer_data(int layer) const { return memory_.data() + 2 * layer * num_blocks_ * block_stride(); }

    int kv_heads_, head_dim_, block_size_;
    KvFormat format_;
    int64_t num_blocks_;
    Buffer memory_;
};

}  // namespace rooftree
