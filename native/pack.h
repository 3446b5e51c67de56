// Weight matrices as the kernels read them: tiles of 16 output rows, interleaved along the input dimension.
//
// A tile covers rows r0..r0+15 and all k inputs, in steps of one input (float formats) or 32 (quantised):
//   F32, F16, BF16: for each input, 16 values.
//   Q8_0: per step 16 half scales, then 8 groups of 64 bytes; byte 4r+j of group g is q[row r][input 4g+j] + 128.
//   Q4_0: per step 16 half scales, then 4 groups of 64 bytes; byte 4r+j of group g holds q[r][4g+j] in its low
//         nibble and q[r][16+4g+j] in its high one.
//   Q4_1: as Q4_0 with 16 half minima between scales and nibbles.
// Interleaving puts one output row in each SIMD lane: a lane adds up its row in input order, so a row's sum never
// depends on how many tokens or rows were computed with it. Every instruction set reads this one layout.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tensor.h"

namespace rooftree {

constexpr int kTileRows = 16;

class ThreadPool;

// Bytes of one step of a tile: 32 inputs (quantised) or 1 (float) of 16 rows.
inline size_t tile_step_bytes(Format f) {
    switch (f) {
        case Format::F32: return 64;
        case Format::F16: case Format::BF16: return 32;
        case Format::Q4_0: return 32 + 256;
        case Format::Q4_1: return 64 + 256;
        case Format::Q8_0: return 32 + 512;
    }
    return 0;
}

inline size_t tile_bytes(Format f, size_t k) { return tile_step_bytes(f) * (is_quantised(f) ? k / kBlock : k); }

// Owned, 64-byte aligned, huge pages where the system gives them.
class Buffer {
   public:
    explicit Buffer(size_t bytes);
    ~Buffer();
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    uint8_t* data() const { return data_; }
    size_t size() const { return size_; }

   private:
    uint8_t* data_;
    size_t size_;
};

// One matrix [n, k], packed. Rows beyond n in the last tile are zero.
struct PackedMatrix {
    Format format;
    int64_t n, k;
    std::unique_ptr<Buffer> buffer;

    int64_t tiles() const { return (n + kTileRows - 1) / kTileRows; }
    const uint8_t* tile(int64_t t) const { return buffer->data() + t * tile_bytes(format, k); }

    // `stored`: n rows of stored_row_bytes(format, k).
    static std::shared_ptr<PackedMatrix> pack(Format format, const uint8_t* stored, int64_t n, int64_t k, ThreadPool& pool);

    // One row back as float32, exactly as the format defines it (embedding look-up).
    void unpack_row(int64_t row, float* out) const;
};

}  // namespace rooftree
