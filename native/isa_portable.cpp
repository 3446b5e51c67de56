// Kernels in plain C++.
#define ROOFTREE_ISA portable
#define ROOFTREE_ISA_NAME "portable"
#include "simd/portable.h"

#include "kernels.h"

namespace rooftree::portable {

// One step at a time: its weights are unpacked once for all tokens, whose sums wait in `out`.
template <Format kFormat>
static void quantised_tile(const uint8_t* tile, int64_t k, const uint8_t* x, size_t stride, int m, float* out) {
    constexpr int kOffset = weight_offset(kFormat);
    for (int i = 0; i < m * kTileRows; i++) out[i] = 0.0f;
    for (int64_t s = 0; s < k / kBlock; s++) {
        RowStep rows[kTileRows];
        for (int r = 0; r < kTileRows; r++) rows[r] = read_row_step(kFormat, tile, s, r);
        for (int t = 0; t < m; t++) {
            const QuantisedRow row(x + t * stride, k);
            const int8_t* q = row.q + s * kBlock;
            for (int r = 0; r < kTileRows; r++) {
                int32_t half[2] = {0, 0};
                for (int i = 0; i < kBlock; i++) half[i / 16] += rows[r].q[i] * q[i];
                float& acc = out[t * kTileRows + r];
                const int32_t first = half[0] + kOffset * row.negated_first[s];
                const int32_t both = half[0] + half[1] + kOffset * row.negated[s];
                if (has_two_scales(kFormat)) {
                    acc += static_cast<float>(first) * row.scale[s] * rows[r].scale[0];
                    acc += static_cast<float>(both - first) * row.scale[s] * rows[r].scale[1];
                } else {
                    acc += static_cast<float>(both) * row.scale[s] * rows[r].scale[0];
                }
                if (has_minimum(kFormat)) acc += rows[r].minimum * row.sum[s];
            }
        }
    }
}

}  // namespace rooftree::portable

#include "kernels_impl.h"

namespace rooftree {
const Kernels& portable_kernels() { return portable::kKernels; }
}  // namespace rooftree
