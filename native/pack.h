// Weight matrices as the kernels read them: tiles of 16 output rows, interleaved along the input dimension.
//
// Float formats: for each input, 16 values; BF16: for each pair of inputs (an odd last one has a zero beside it), the
// pairs of the 16 rows. F8_E4M3 in steps of 128 inputs, each after 16 float scales; a NaN code makes
// its row's scale NaN, for the kernels read codes as numbers. Quantised formats go in steps of 32 inputs:
//
//   step = [ header: scales of the 16 rows | weights: 16 x 32 unsigned integers of 4, 5, 6 or 8 bits ]
//
// Weights, bits 0-3: 4 groups of 64 bytes; byte 4r+j of group g holds input 4g+j of row r in its low nibble and input
// 16+4g+j in its high one. Then, in units of "input group" u = 0..7 (inputs 4u..4u+3, byte 4r+j as before):
//   5 bits: 8 masks of 64 bits, one per input group: bit 4r+j is bit 4 of that weight.
//   6 bits: 2 vectors of 64 bytes; bits 2(u%4) and up of byte 4r+j in vector u/4 are bits 4-5 of that weight.
//   8 bits: no nibbles, but 8 groups of 64 bytes, one per input group.
// Signed weights are stored with an offset (8, 16, 32, 128) that the kernels take out again.
//
// Headers: halves d[16] (Q4_0, Q5_0, Q8_0), halves d[16] and m[16] (Q4_1, Q5_1). K-quants keep one super-block header
// before each 8 steps, halves d[16] and (not Q6_K) dmin[16], and bytes in the steps: scales[16] and minima[16], for
// Q6_K signed scales[16] of the first and of the second 16 inputs. FP4 formats keep floats: 16 scales (MXFP4), or 16 of
// the first and 16 of the second 16 inputs (NVFP4), each for twice the element's value (see kFp4Codes).
//
// Interleaving puts one output row in each SIMD lane: a lane adds up its row in input order, so a row's sum never
// depends on how many tokens or rows were computed with it. Every instruction set reads this one layout.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tensor.h"

namespace rooftree {

constexpr int kTileRows = 16;
constexpr int kSuperSteps = kSuperBlock / kBlock;

class ThreadPool;
struct RoundingLoops;

struct TileLayout {
    int bits;                 // of a weight as stored in the tile
    size_t header;            // bytes before the weights in a step
    size_t super_header = 0;  // bytes before each 8 steps

    constexpr size_t weight_bytes() const { return bits == 8 ? 512 : 256 + 64 * (bits == 5 ? 1 : bits == 6 ? 2 : 0); }
    constexpr size_t step_bytes() const { return header + weight_bytes(); }
    constexpr size_t super_bytes() const { return super_header + kSuperSteps * step_bytes(); }
    constexpr size_t tile_bytes(size_t k) const {
        return super_header ? k / kSuperBlock * super_bytes() : k / kBlock * step_bytes();
    }
    constexpr const uint8_t* super(const uint8_t* tile, int64_t s) const { return tile + s / kSuperSteps * super_bytes(); }
    constexpr const uint8_t* step(const uint8_t* tile, int64_t s) const {
        return super_header ? super(tile, s) + super_header + s % kSuperSteps * step_bytes() : tile + s * step_bytes();
    }
};

constexpr TileLayout tile_layout(Format f) {
    switch (f) {
        case Format::Q4_0: return {4, 32};
        case Format::Q4_1: return {4, 64};
        case Format::Q5_0: return {5, 32};
        case Format::Q5_1: return {5, 64};
        case Format::Q8_0: return {8, 32};
        case Format::Q4_K: return {4, 32, 64};
        case Format::Q5_K: return {5, 32, 64};
        case Format::Q6_K: return {6, 32, 32};
        case Format::MXFP4: return {4, 64};
        case Format::NVFP4: return {4, 128};
        default: return {0, 0};
    }
}

// What signed weights are stored above.
constexpr int weight_offset(Format f) {
    switch (f) {
        case Format::Q4_0: return 8;
        case Format::Q5_0: return 16;
        case Format::Q6_K: return 32;
        case Format::Q8_0: return 128;
        case Format::MXFP4: case Format::NVFP4: return 12;
        default: return 0;
    }
}

// Whether a step has a minimum to add, and scales of its own for its first and second 16 inputs.
constexpr bool has_minimum(Format f) {
    return f == Format::Q4_1 || f == Format::Q5_1 || f == Format::Q4_K || f == Format::Q5_K;
}
constexpr bool has_two_scales(Format f) { return f == Format::Q6_K || f == Format::NVFP4; }

// Twice the value of each E2M1 code, above weight_offset: whole numbers for the integer kernels.
constexpr uint8_t kFp4Codes[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

// F8_E4M3: inputs between two sets of scales.
constexpr int kFp8Step = 128;
constexpr size_t kFp8StepBytes = sizeof(float) * kTileRows + static_cast<size_t>(kFp8Step) * kTileRows;

// BF16: bytes of 16 rows' pairs of inputs.
constexpr size_t kBF16PairBytes = 2 * sizeof(uint16_t) * kTileRows;

inline size_t tile_bytes(Format f, size_t k) {
    if (f == Format::F8_E4M3) return (k + kFp8Step - 1) / kFp8Step * kFp8StepBytes;
    if (f == Format::BF16) return (k + 1) / 2 * kBF16PairBytes;
    return is_quantised(f) ? tile_layout(f).tile_bytes(k) : stored_block(f).bytes * kTileRows * k;
}

// Factors kept apart from a matrix's bytes, one per block of rows and columns; values null: none.
struct OuterScales {
    const float* values = nullptr;
    int64_t block_rows = 1, block_columns = 1, columns = 1;  // columns: of `values`

    float at(int64_t row, int64_t column) const {
        return values ? values[row / block_rows * columns + column / block_columns] : 1.0f;
    }
};

// Whole rows as a checkpoint stores them, and the factors of the whole matrix.
struct StoredRows {
    Format format;
    const uint8_t* data;
    OuterScales scales;
};

// One row's part of one step, unpacked: value of input i = scale[i / 16] * (q[i] - offset) + minimum.
struct RowStep {
    uint8_t q[kBlock];
    float scale[2];
    float minimum;
};

// Reads row `r` (0..15) of step `s` of a tile.
RowStep read_row_step(Format format, const uint8_t* tile, int64_t s, int r);

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

// Bytes that somebody else owns.
struct Stretch {
    const uint8_t* data;
    size_t bytes;
};

// Room for many matrices in few large mappings. A matrix alone is often smaller than a huge page, and with small pages
// the processor stops reading ahead every 4 KiB. Not for several threads at once.
class WeightMemory {
   public:
    struct Place {
        std::shared_ptr<Buffer> owner;
        uint8_t* data;
    };
    Place take(size_t bytes);

    // All that was taken so far, as it lies.
    std::vector<Stretch> stretches() const;

   private:
    static constexpr size_t kChunk = size_t{64} << 20;
    struct Chunk {
        std::shared_ptr<Buffer> buffer;
        size_t used;
    };
    std::vector<Chunk> chunks_;
};

// One matrix [n, k], packed. Rows beyond n in the last tile are zero.
struct PackedMatrix {
    Format format;
    int64_t n, k;
    WeightMemory::Place place;

    // Room for the matrix; its rows are still to be packed.
    PackedMatrix(Format format, int64_t n, int64_t k, WeightMemory& memory);

    int64_t tiles() const { return (n + kTileRows - 1) / kTileRows; }
    size_t num_bytes() const { return tiles() * tile_bytes(format, k); }
    const uint8_t* tile(int64_t t) const { return place.data + t * tile_bytes(format, k); }

    // Packs `rows` rows, each row once. `first` is a multiple of kTileRows, and so is `rows` except at the end. Scales go
    // with F8_E4M3 (blocks of 128 columns or of all) and FP4. Floats and F8_E4M3 (any blocks) that are stored in another
    // format than the matrix's are rounded to it by `rounding`.
    void pack_rows(int64_t first, int64_t rows, const StoredRows& stored, const RoundingLoops& rounding, ThreadPool& pool);

    // One row back as float32, exactly as the format defines it (embedding look-up).
    void unpack_row(int64_t row, float* out) const;
};

}  // namespace rooftree
