#include "pack.h"

#include <sys/mman.h>

#include <new>
#include <stdexcept>

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

namespace {

template <typename Element>
void pack_float_tile(const uint8_t* stored, int64_t rows, int64_t k, uint8_t* tile) {
    const Element* in = reinterpret_cast<const Element*>(stored);
    Element* out = reinterpret_cast<Element*>(tile);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < k; i++) {
            Element value;  // the map may be unaligned
            std::memcpy(&value, in + r * k + i, sizeof(Element));
            out[i * kTileRows + r] = value;
        }
}

// Nibbles: stored byte i of a block holds inputs i (low) and i + 16 (high); so does the packed byte.
void pack_q4_tile(const uint8_t* stored, int64_t rows, int64_t k, bool has_min, uint8_t* tile) {
    const size_t block_bytes = has_min ? 20 : 18;
    const size_t header = has_min ? 64 : 32;
    const int64_t steps = k / kBlock;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t s = 0; s < steps; s++) {
            const uint8_t* block = stored + (r * steps + s) * block_bytes;
            uint8_t* out = tile + s * (header + 256);
            std::memcpy(out + 2 * r, block, 2);
            if (has_min) std::memcpy(out + 32 + 2 * r, block + 2, 2);
            const uint8_t* nibbles = block + (has_min ? 4 : 2);
            for (int g = 0; g < 4; g++) std::memcpy(out + header + 64 * g + 4 * r, nibbles + 4 * g, 4);
        }
}

void pack_q8_tile(const uint8_t* stored, int64_t rows, int64_t k, uint8_t* tile) {
    const int64_t steps = k / kBlock;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t s = 0; s < steps; s++) {
            const uint8_t* block = stored + (r * steps + s) * 34;
            uint8_t* out = tile + s * (32 + 512);
            std::memcpy(out + 2 * r, block, 2);
            for (int g = 0; g < 8; g++) {
                uint32_t four;
                std::memcpy(&four, block + 2 + 4 * g, 4);
                four ^= 0x80808080u;  // signed to offset-128
                std::memcpy(out + 32 + 64 * g + 4 * r, &four, 4);
            }
        }
}

void pack_tile(Format format, const uint8_t* stored, int64_t rows, int64_t k, uint8_t* tile) {
    switch (format) {
        case Format::F32: return pack_float_tile<uint32_t>(stored, rows, k, tile);
        case Format::F16: case Format::BF16: return pack_float_tile<uint16_t>(stored, rows, k, tile);
        case Format::Q4_0: return pack_q4_tile(stored, rows, k, false, tile);
        case Format::Q4_1: return pack_q4_tile(stored, rows, k, true, tile);
        case Format::Q8_0: return pack_q8_tile(stored, rows, k, tile);
    }
}

float load_half(const uint8_t* p) {
    uint16_t h;
    std::memcpy(&h, p, 2);
    return half_to_float(h);
}

}  // namespace

std::shared_ptr<PackedMatrix> PackedMatrix::pack(Format format, const uint8_t* stored, int64_t n, int64_t k,
                                                 ThreadPool& pool) {
    if (is_quantised(format) && k % kBlock != 0) throw std::invalid_argument("quantised rows must be multiples of 32");
    auto packed = std::make_shared<PackedMatrix>();
    packed->format = format;
    packed->n = n;
    packed->k = k;
    const size_t bytes = tile_bytes(format, k);
    packed->buffer = std::make_unique<Buffer>(packed->tiles() * bytes);
    pool.parallel_for(packed->tiles(), 4, [&](int64_t t) {
        const int64_t row = t * kTileRows;
        const int64_t rows = n - row < kTileRows ? n - row : kTileRows;
        pack_tile(format, stored + row * stored_row_bytes(format, k), rows, k, packed->buffer->data() + t * bytes);
    });
    return packed;
}

void PackedMatrix::unpack_row(int64_t row, float* out) const {
    const uint8_t* base = tile(row / kTileRows);
    const int r = static_cast<int>(row % kTileRows);
    const size_t step = tile_step_bytes(format);
    if (!is_quantised(format)) {
        for (int64_t i = 0; i < k; i++) {
            const uint8_t* p = base + i * step;
            if (format == Format::F32) out[i] = reinterpret_cast<const float*>(p)[r];
            else if (format == Format::F16) out[i] = half_to_float(reinterpret_cast<const uint16_t*>(p)[r]);
            else out[i] = bf16_to_float(reinterpret_cast<const uint16_t*>(p)[r]);
        }
        return;
    }
    for (int64_t s = 0; s < k / kBlock; s++) {
        const uint8_t* p = base + s * step;
        const float scale = load_half(p + 2 * r);
        float* block = out + s * kBlock;
        if (format == Format::Q8_0) {
            for (int i = 0; i < kBlock; i++) {
                const int q = static_cast<int>(p[32 + 64 * (i / 4) + 4 * r + i % 4]) - 128;
                block[i] = static_cast<float>(q) * scale;
            }
            continue;
        }
        const bool has_min = format == Format::Q4_1;
        const float minimum = has_min ? load_half(p + 32 + 2 * r) : 0.0f;
        const uint8_t* nibbles = p + (has_min ? 64 : 32);
        for (int i = 0; i < 16; i++) {
            const uint8_t byte = nibbles[64 * (i / 4) + 4 * r + i % 4];
            const int low = byte & 15, high = byte >> 4;
            block[i] = has_min ? low * scale + minimum : (low - 8) * scale;
            block[i + 16] = has_min ? high * scale + minimum : (high - 8) * scale;
        }
    }
}

}  // namespace rooftree
