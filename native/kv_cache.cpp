#include "kv_cache.h"

#include <cstring>
#include <stdexcept>

namespace rooftree {

// A vector may reach beyond the last element.
constexpr size_t kVectorBytes = 64;

KvCache::KvCache(int layers, int kv_heads, int head_dim, int block_size, KvFormat format, int64_t num_blocks)
    : layers_(layers), kv_heads_(kv_heads), head_dim_(head_dim), block_size_(block_size), format_(format),
      memory_(bytes_per_block(layers, kv_heads, head_dim, block_size, format) * num_blocks + kVectorBytes) {
    if (block_size % kKvGroup != 0) throw std::invalid_argument("block size must be a multiple of 16");
    if (head_dim < 8 || head_dim > kMaxHeadDim || head_dim % 8 != 0) throw std::invalid_argument("head_dim must be a multiple of 8, at most 512");
}

size_t KvCache::bytes_per_block(int layers, int kv_heads, int head_dim, int block_size, KvFormat format) {
    return static_cast<size_t>(2) * layers * kv_heads * kv_head_bytes(format, head_dim, block_size);
}

// In each of the formats a small number, and no slow one.
void KvCache::fill() { std::memset(memory_.data(), 0x10, memory_.size()); }

}  // namespace rooftree
