// Kernels in plain C++.
#define ROOFTREE_ISA portable
#define ROOFTREE_ISA_NAME "portable"
#include "simd/portable.h"

#include "kernels.h"
#include "quantised_row.h"

namespace rooftree::portable {

// Per block: `isum` [16] of unsigned weights times int8 inputs, minus the weights' offset times the inputs' sum.
template <bool kMin>
struct Q4 {
    static constexpr Format format = kMin ? Format::Q4_1 : Format::Q4_0;
    static constexpr int header = kMin ? 64 : 32;
    static void dot(const uint8_t* step, const int8_t* q, int32_t negated, int32_t* isum) {
        for (int r = 0; r < kTileRows; r++) isum[r] = kMin ? 0 : 8 * negated;
        for (int g = 0; g < 4; g++)
            for (int r = 0; r < kTileRows; r++)
                for (int j = 0; j < 4; j++) {
                    const int byte = step[header + 64 * g + 4 * r + j];
                    isum[r] += (byte & 15) * q[4 * g + j] + (byte >> 4) * q[16 + 4 * g + j];
                }
    }
};

struct Q8 {
    static constexpr Format format = Format::Q8_0;
    static void dot(const uint8_t* step, const int8_t* q, int32_t negated, int32_t* isum) {
        for (int r = 0; r < kTileRows; r++) isum[r] = 128 * negated;
        for (int g = 0; g < 8; g++)
            for (int r = 0; r < kTileRows; r++)
                for (int j = 0; j < 4; j++) isum[r] += step[32 + 64 * g + 4 * r + j] * q[4 * g + j];
    }
};

template <typename Q>
static void quantised_tile(const uint8_t* tile, int64_t k, const uint8_t* x, size_t stride, int m, float* out) {
    const size_t step_bytes = tile_step_bytes(Q::format);
    for (int t = 0; t < m; t++) {
        const QuantisedRow row(x + t * stride, k);
        float acc[kTileRows] = {};
        for (int64_t s = 0; s < k / kBlock; s++) {
            const uint8_t* step = tile + s * step_bytes;
            const uint16_t* scales = reinterpret_cast<const uint16_t*>(step);
            int32_t isum[kTileRows];
            Q::dot(step, row.q + s * kBlock, row.negated[s], isum);
            for (int r = 0; r < kTileRows; r++) acc[r] += static_cast<float>(isum[r]) * row.scale[s] * half_to_float(scales[r]);
            if (Q::format == Format::Q4_1)
                for (int r = 0; r < kTileRows; r++) acc[r] += half_to_float(scales[16 + r]) * row.sum[s];
        }
        std::memcpy(out + t * kTileRows, acc, sizeof(acc));
    }
}

}  // namespace rooftree::portable

#include "kernels_impl.h"

namespace rooftree {
const Kernels& portable_kernels() { return portable::kKernels; }
}  // namespace rooftree
