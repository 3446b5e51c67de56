// Kernels in plain C++.
#define ROOFTREE_ISA portable
#define ROOFTREE_ISA_NAME "portable"
#include "simd/portable.h"

#include "kernels.h"
#include "tile_output.h"

namespace rooftree::portable {

// One step at a time: its weights are unpacked once for the rows of a panel, whose sums wait.
template <Format kFormat>
static void quantised_panel(const uint8_t* tile, int64_t k, const uint8_t* panel, int width, const TileOutput& out, int first) {
    constexpr int kOffset = weight_offset(kFormat);
    float sums[kPanelRows][kTileRows] = {};
    for (int64_t s = 0; s < k / kBlock; s++) {
        const PanelStep x(panel, width, s);
        for (int r = 0; r < kTileRows; r++) {
            const RowStep w = read_row_step(kFormat, tile, s, r);
            for (int t = 0; t < width; t++) {
                const int8_t* q = x.q + t * kBlock;
                int32_t half[2] = {0, 0};
                for (int i = 0; i < kBlock; i++) half[i / 16] += w.q[i] * q[i];
                float& acc = sums[t][r];
                const int32_t low = half[0] + kOffset * x.negated8_first[t] / 8;
                const int32_t both = half[0] + half[1] + kOffset * x.negated8[t] / 8;
                if (has_two_scales(kFormat)) {
                    acc += static_cast<float>(low) * x.scale[t] * w.scale[0];
                    acc += static_cast<float>(both - low) * x.scale[t] * w.scale[1];
                } else {
                    acc += static_cast<float>(both) * x.scale[t] * w.scale[0];
                }
                if (has_minimum(kFormat)) acc += w.minimum * x.sum[t];
            }
        }
    }
    for (int t = 0; t < width; t++)
        for (int j = 0; j < kTileRows; j += Simd::N) put(out, first + t, j, Simd::load(sums[t] + j));
}

template <Format kFormat>
static void quantised_tile(const uint8_t* tile, int64_t k, const uint8_t* x, size_t stride, int m, const TileOutput& out) {
    for (int t = 0; t < m;) {
        const int width = panel_of(t, m).width;
        quantised_panel<kFormat>(tile, k, x + t * stride, width, out, t);
        t += width;
    }
}

}  // namespace rooftree::portable

#include "kernels_impl.h"

namespace rooftree {
const Kernels& portable_kernels() { return portable::kKernels; }
}  // namespace rooftree
