#include "pack.h"

#include <sys/mman.h>

#include <limits>
#include <memory>
#include <new>
#include <stdexcept>

#include "rounding.h"
#include "thread_pool.h"

namespace rooftree {

Buffer::Buffer(size_t bytes) : size_(bytes) {
    const size_t mapped = bytes == 0 ? 1 : bytes;
    void* p = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    madvise(p, mapped, MADV_HUGEPAGE);
    data_ = static_cast<uint8_t*>(p);
}

Buffer::~Buffer() { munmap(data_, size_ == 0 ? 1 : size_); }

WeightMemory::Place WeightMemory::take(size_t bytes) {
    bytes = (bytes + 63) / 64 * 64;
    if (chunks_.empty() || chunks_.back().used + bytes > chunks_.back().buffer->size())
        chunks_.push_back({std::make_shared<Buffer>(bytes > kChunk ? bytes : kChunk), 0});
    Chunk& chunk = chunks_.back();
    chunk.used += bytes;
    return {chunk.buffer, chunk.buffer->data() + chunk.used - bytes};
}

std::vector<Stretch> WeightMemory::stretches() const {
    std::vector<Stretch> all;
    for (const Chunk& chunk : chunks_) all.push_back({chunk.buffer->data(), chunk.used});
    return all;
}

namespace {

// ---- stored rows ----------------------------------------------------------------------------------------------

// Scale and minimum `j` of a Q4_K or Q5_K super-block: 6 bits each, the last four split over two bytes.
void read_k_scale(const uint8_t* packed, int j, uint8_t* scale, uint8_t* minimum) {
    if (j < 4) {
        *scale = packed[j] & 63;
        *minimum = packed[j + 4] & 63;
    } else {
        *scale = (packed[j + 4] & 15) | (packed[j - 4] >> 6) << 4;
        *minimum = (packed[j + 4] >> 4) | (packed[j] >> 6) << 4;
    }
}

// Step `j` of a super-block: sub-blocks 2i and 2i+1 are the low and high nibbles of the same 32 bytes.
void read_k_nibbles(const uint8_t* nibbles, int j, uint8_t* q) {
    for (int i = 0; i < kBlock; i++) q[i] = (nibbles[32 * (j / 2) + i] >> 4 * (j % 2)) & 15;
}

// Q6_K: 128 inputs share 64 bytes of low nibbles and 32 bytes of high bit pairs.
void read_q6_k(const uint8_t* low, const uint8_t* high, int j, uint8_t* q) {
    const int quarter = j % 4;
    const uint8_t* l = low + 64 * (j / 4) + 32 * (quarter % 2);
    const uint8_t* h = high + 32 * (j / 4);
    for (int i = 0; i < kBlock; i++) q[i] = ((l[i] >> 4 * (quarter / 2)) & 15) | ((h[i] >> 2 * quarter) & 3) << 4;
}

// ---- tiles ----------------------------------------------------------------------------------------------------

// Bits 0-3 of row r: byte i of `pairs` holds input i in its low nibble and input 16+i in its high one.
void write_pairs(const uint8_t* pairs, int r, uint8_t* weights) {
    for (int g = 0; g < 4; g++) std::memcpy(weights + 64 * g + 4 * r, pairs + 4 * g, 4);
}

void write_weights(const TileLayout& layout, const uint8_t* q, int r, uint8_t* weights) {
    if (layout.bits == 8) {
        for (int u = 0; u < 8; u++) std::memcpy(weights + 64 * u + 4 * r, q + 4 * u, 4);
        return;
    }
    uint8_t pairs[16];
    for (int i = 0; i < 16; i++) pairs[i] = (q[i] & 15) | (q[16 + i] & 15) << 4;
    write_pairs(pairs, r, weights);
    uint8_t* high = weights + 256;
    for (int i = 0; i < kBlock && layout.bits > 4; i++) {
        const int u = i / 4, lane = 4 * r + i % 4, bits = q[i] >> 4;
        if (layout.bits == 5) high[8 * u + lane / 8] |= bits << lane % 8;
        else high[64 * (u / 4) + lane] |= bits << 2 * (u % 4);
    }
}

// Bit 4 of row r, from 32 bits in input order.
void write_fifth_bits(const uint8_t* stored, int r, uint8_t* weights) {
    uint32_t bits;
    std::memcpy(&bits, stored, 4);
    for (int u = 0; u < 8; u++) weights[256 + 8 * u + r / 2] |= ((bits >> 4 * u) & 15) << 4 * (r % 2);
}

uint8_t read_weight(const TileLayout& layout, const uint8_t* weights, int r, int i) {
    const int u = i / 4, lane = 4 * r + i % 4;
    if (layout.bits == 8) return weights[64 * u + lane];
    const uint8_t nibble = (weights[64 * (u % 4) + lane] >> 4 * (u / 4)) & 15;
    const uint8_t* high = weights + 256;
    if (layout.bits == 5) return nibble | ((high[8 * u + lane / 8] >> lane % 8) & 1) << 4;
    if (layout.bits == 6) return nibble | ((high[64 * (u / 4) + lane] >> 2 * (u % 4)) & 3) << 4;
    return nibble;
}

// One step of 32 inputs of row r. `block` is the stored block that holds it, `j` the step's number inside.
void pack_step(Format format, const TileLayout& layout, const uint8_t* block, int j, int r, uint8_t* super, uint8_t* step) {
    uint8_t q[kBlock];
    uint8_t* weights = step + layout.header;
    switch (format) {
        case Format::Q4_0: case Format::Q5_0:
            std::memcpy(step + 2 * r, block, 2);
            if (format == Format::Q4_0) return write_pairs(block + 2, r, weights);
            write_pairs(block + 6, r, weights);
            return write_fifth_bits(block + 2, r, weights);
        case Format::Q4_1: case Format::Q5_1:
            std::memcpy(step + 2 * r, block, 2);
            std::memcpy(step + 32 + 2 * r, block + 2, 2);
            if (format == Format::Q4_1) return write_pairs(block + 4, r, weights);
            write_pairs(block + 8, r, weights);
            return write_fifth_bits(block + 4, r, weights);
        case Format::Q8_0:
            std::memcpy(step + 2 * r, block, 2);
            for (int i = 0; i < kBlock; i++) q[i] = block[2 + i] ^ 0x80;  // signed to offset-128
            break;
        case Format::Q4_K: case Format::Q5_K:
            std::memcpy(super + 2 * r, block, 2);
            std::memcpy(super + 32 + 2 * r, block + 2, 2);
            read_k_scale(block + 4, j, step + r, step + 16 + r);
            read_k_nibbles(block + (format == Format::Q5_K ? 48 : 16), j, q);
            for (int i = 0; i < kBlock && format == Format::Q5_K; i++) q[i] |= ((block[16 + i] >> j) & 1) << 4;
            break;
        case Format::Q6_K:
            std::memcpy(super + 2 * r, block + 208, 2);
            step[r] = block[192 + 2 * j];
            step[16 + r] = block[192 + 2 * j + 1];
            read_q6_k(block, block + 128, j, q);
            break;
        case Format::MXFP4: return write_pairs(block + 1, r, weights);
        case Format::NVFP4:
            for (int i = 0; i < kBlock; i++) q[i] = (block[9 * (i / 16) + 1 + i % 8] >> 4 * (i % 16 / 8)) & 15;
            break;
        default: return;
    }
    write_weights(layout, q, r, weights);
}

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// E8M0: a power of two, 2^-127 (subnormal) for code 0, NaN for 255.
float e8m0_to_float(uint8_t code) {
    if (code == 0xff) return kNan;
    return code ? bits_to_float(static_cast<uint32_t>(code) << 23) : 0x1p-127f;
}

bool is_e4m3_nan(uint8_t code) { return (code & 0x7f) == 0x7f; }

float e4m3_to_float(uint8_t code) {
    return is_e4m3_nan(code) ? kNan : half_to_float(e4m3_to_half_bits(code)) * kE4m3HalfScale;
}

void write_fp4_scales(Format format, const uint8_t* block, int r, float outer, uint8_t* step) {
    float* scales = reinterpret_cast<float*>(step);
    if (format == Format::MXFP4) {
        scales[r] = 0.5f * e8m0_to_float(block[0]) * outer;
        return;
    }
    for (int half = 0; half < 2; half++) scales[16 * half + r] = 0.5f * e4m3_to_float(block[9 * half]) * outer;
}

void pack_quantised_tile(Format format, const uint8_t* stored, int64_t first_row, int64_t rows, int64_t k,
                         const OuterScales& scales, uint8_t* tile) {
    const TileLayout layout = tile_layout(format);
    const StoredBlock unit = stored_block(format);
    const int steps_per_block = unit.inputs / kBlock;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t s = 0; s < k / kBlock; s++) {
            const uint8_t* block = stored + r * stored_row_bytes(format, k) + s / steps_per_block * unit.bytes;
            pack_step(format, layout, block, static_cast<int>(s % steps_per_block), static_cast<int>(r),
                      const_cast<uint8_t*>(layout.super(tile, s)), const_cast<uint8_t*>(layout.step(tile, s)));
            if (is_fp4(format))
                write_fp4_scales(format, block, static_cast<int>(r), scales.at(first_row + r, s * kBlock),
                                 const_cast<uint8_t*>(layout.step(tile, s)));
        }
}

void pack_fp8_tile(const uint8_t* stored, int64_t first_row, int64_t rows, int64_t k, const OuterScales& scales, uint8_t* tile) {
    for (int64_t begin = 0; begin < k; begin += kFp8Step, tile += kFp8StepBytes) {
        const int64_t count = k - begin < kFp8Step ? k - begin : kFp8Step;
        for (int64_t r = 0; r < rows; r++) {
            const uint8_t* row = stored + r * k + begin;
            uint8_t* codes = tile + sizeof(float) * kTileRows + r;
            bool has_nan = false;
            for (int64_t i = 0; i < count; i++) {
                codes[i * kTileRows] = row[i];
                has_nan |= is_e4m3_nan(row[i]);
            }
            const float scale = kE4m3HalfScale * scales.at(first_row + r, begin);
            reinterpret_cast<float*>(tile)[r] = has_nan ? kNan : scale;
        }
    }
}

// Which element of a tile holds input i of row r.
int64_t single_at(int64_t i, int64_t r) { return i * kTileRows + r; }
int64_t pair_at(int64_t i, int64_t r) { return i / 2 * 2 * kTileRows + 2 * r + i % 2; }

template <typename Element, int64_t (*kAt)(int64_t, int64_t)>
void pack_float_tile(const uint8_t* stored, int64_t rows, int64_t k, uint8_t* tile) {
    constexpr int64_t kRun = 64 / sizeof(Element);  // inputs of a row that lie in a cache line, in all rows before going on
    for (int64_t begin = 0; begin < k; begin += kRun) {
        const int64_t end = begin + kRun < k ? begin + kRun : k;
        for (int64_t r = 0; r < rows; r++)
            for (int64_t i = begin; i < end; i++)  // byte copies: the map may be unaligned
                std::memcpy(tile + kAt(i, r) * sizeof(Element), stored + (r * k + i) * sizeof(Element), sizeof(Element));
    }
}

void pack_tile(const StoredRows& stored, int64_t first_row, int64_t rows, int64_t k, uint8_t* tile) {
    switch (stored.format) {
        case Format::F32: return pack_float_tile<uint32_t, single_at>(stored.data, rows, k, tile);
        case Format::F16: return pack_float_tile<uint16_t, single_at>(stored.data, rows, k, tile);
        case Format::BF16: return pack_float_tile<uint16_t, pair_at>(stored.data, rows, k, tile);
        case Format::F8_E4M3: return pack_fp8_tile(stored.data, first_row, rows, k, stored.scales, tile);
        default: return pack_quantised_tile(stored.format, stored.data, first_row, rows, k, stored.scales, tile);
    }
}

// Inputs of a tile that are rounded before they are packed: long enough to read rows in pages, and what lies between stays
// in a near cache.
constexpr int64_t kRoundedRun = 2048;

// A run of inputs lies in a tile as it would in a tile of its own.
void round_tile(const RoundingLoops& loops, const StoredRows& stored, int64_t first_row, int64_t rows, int64_t k, Format format,
                uint8_t* tile) {
    const size_t row_bytes = stored_row_bytes(stored.format, k);
    const std::unique_ptr<uint8_t[]> rounded(new uint8_t[kTileRows * stored_row_bytes(format, k < kRoundedRun ? k : kRoundedRun)]);
    for (int64_t begin = 0; begin < k; begin += kRoundedRun) {
        const int64_t end = k - begin < kRoundedRun ? k : begin + kRoundedRun;
        const size_t run_bytes = stored_row_bytes(format, end - begin);
        for (int64_t r = 0; r < rows; r++)
            round_inputs(loops, stored.format, stored.data + r * row_bytes, stored.scales, first_row + r, begin, end, format,
                         rounded.get() + r * run_bytes);
        pack_tile({format, rounded.get(), {}}, first_row, rows, end - begin, tile + tile_bytes(format, begin));
    }
}

constexpr size_t kHugePage = size_t{2} << 20;

void check_scales(const StoredRows& stored, int64_t k, bool as_stored) {
    if (stored.format != Format::F8_E4M3 && !is_fp4(stored.format))
        throw std::invalid_argument("this format has no scales beside it");
    const int64_t unit = stored.format == Format::F8_E4M3 ? kFp8Step : kBlock;
    if (as_stored && stored.scales.block_columns < k && stored.scales.block_columns % unit != 0)
        throw std::invalid_argument("scale blocks must be multiples of the kernels' step");
}

float load_half(const uint8_t* p) {
    uint16_t h;
    std::memcpy(&h, p, 2);
    return half_to_float(h);
}

}  // namespace

RowStep read_row_step(Format format, const uint8_t* tile, int64_t s, int r) {
    const TileLayout layout = tile_layout(format);
    const uint8_t* step = layout.step(tile, s);
    RowStep row;
    row.minimum = 0.0f;
    if (is_fp4(format)) {
        const float* scales = reinterpret_cast<const float*>(step);
        row.scale[0] = scales[r];
        row.scale[1] = scales[format == Format::NVFP4 ? 16 + r : r];
    } else if (is_k_quant(format)) {
        const uint8_t* super = layout.super(tile, s);
        const float d = load_half(super + 2 * r);
        if (format == Format::Q6_K) {
            row.scale[0] = d * static_cast<int8_t>(step[r]);
            row.scale[1] = d * static_cast<int8_t>(step[16 + r]);
        } else {
            row.scale[0] = row.scale[1] = d * step[r];
            row.minimum = -(load_half(super + 32 + 2 * r) * step[16 + r]);
        }
    } else {
        row.scale[0] = row.scale[1] = load_half(step + 2 * r);
        if (has_minimum(format)) row.minimum = load_half(step + 32 + 2 * r);
    }
    for (int i = 0; i < kBlock; i++) {
        const uint8_t q = read_weight(layout, step + layout.header, r, i);
        row.q[i] = is_fp4(format) ? kFp4Codes[q] : q;
    }
    return row;
}

PackedMatrix::PackedMatrix(Format format, int64_t n, int64_t k, WeightMemory& memory) : format(format), n(n), k(k) {
    if (stored_block(format).bytes == 0) throw std::invalid_argument("no such format");
    if (n < 0 || k < 1 || k % stored_block(format).inputs != 0) throw std::invalid_argument("rows must be whole blocks");
    place = memory.take(num_bytes());
}

void PackedMatrix::pack_rows(int64_t first, int64_t rows, const StoredRows& stored, const RoundingLoops& rounding,
                             ThreadPool& pool) {
    if (first < 0 || rows < 0 || rows > n - first) throw std::invalid_argument("the matrix does not have these rows");
    if (first % kTileRows != 0 || (rows % kTileRows != 0 && first + rows != n))
        throw std::invalid_argument("rows must be whole tiles");
    const bool as_stored = stored.format == format;
    if (!as_stored && !can_round(stored.format, format)) throw std::invalid_argument("no such rounding");
    if (stored.scales.values) check_scales(stored, k, as_stored);
    const size_t row_bytes = stored_row_bytes(stored.format, k), bytes = tile_bytes(format, k);
    // A huge page that two threads are the first to touch at once is cleared by both.
    const int64_t grain = static_cast<int64_t>(kHugePage / bytes) + 1;
    pool.parallel_for((rows + kTileRows - 1) / kTileRows, grain, [&](int64_t t) {
        const int64_t row = t * kTileRows;
        const int64_t count = rows - row < kTileRows ? rows - row : kTileRows;
        const StoredRows part{stored.format, stored.data + row * row_bytes, stored.scales};
        uint8_t* tile = place.data + (first / kTileRows + t) * bytes;
        if (as_stored) pack_tile(part, first + row, count, k, tile);
        else round_tile(rounding, part, first + row, count, k, format, tile);
    });
}

void PackedMatrix::unpack_row(int64_t row, float* out) const {
    const uint8_t* base = tile(row / kTileRows);
    const int r = static_cast<int>(row % kTileRows);
    if (is_quantised(format)) {
        const int offset = weight_offset(format);
        for (int64_t s = 0; s < k / kBlock; s++) {
            const RowStep step = read_row_step(format, base, s, r);
            for (int i = 0; i < kBlock; i++)
                out[s * kBlock + i] = step.scale[i / 16] * static_cast<float>(step.q[i] - offset) + step.minimum;
        }
        return;
    }
    const uint16_t* words = reinterpret_cast<const uint16_t*>(base);
    for (int64_t i = 0; i < k; i++) {
        if (format == Format::F8_E4M3) {
            const uint8_t* step = base + i / kFp8Step * kFp8StepBytes;
            const uint8_t code = step[sizeof(float) * kTileRows + i % kFp8Step * kTileRows + r];
            out[i] = half_to_float(e4m3_to_half_bits(code)) * reinterpret_cast<const float*>(step)[r];
        } else if (format == Format::F32) {
            out[i] = reinterpret_cast<const float*>(base)[single_at(i, r)];
        } else if (format == Format::F16) {
            out[i] = half_to_float(words[single_at(i, r)]);
        } else {
            out[i] = bf16_to_float(words[pair_at(i, r)]);
        }
    }
}

}  // namespace rooftree
