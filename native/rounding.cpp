#include "rounding.h"

#include <algorithm>

#include "cpu_features.h"

namespace rooftree {

namespace {

// Inputs converted at once: a multiple of every block.
constexpr int64_t kRun = 256;

void apply_scales(const OuterScales& scales, int64_t row, int64_t begin, int64_t count, float* values) {
    if (!scales.values) return;
    for (int64_t i = 0; i < count;) {
        const int64_t block_end = ((begin + i) / scales.block_columns + 1) * scales.block_columns;
        const int64_t end = std::min(count, block_end - begin);
        const float scale = scales.at(row, begin + i);
        for (; i < end; i++) values[i] *= scale;
    }
}

}  // namespace

const RoundingLoops& rounding_for(const std::string& isa) {
    const std::string name = kernels_for(isa).name;
#if defined(ROOFTREE_X86)
    if (name.rfind("avx", 0) == 0) return avx2_rounding();
#endif
    return portable_rounding();
}

bool can_round(Format source, Format target) {
    const bool from = source == Format::F32 || source == Format::F16 || source == Format::BF16 || source == Format::F8_E4M3;
    const bool to = target == Format::BF16 || (target >= Format::Q4_0 && target <= Format::Q5_1);
    return from && to;
}

void round_inputs(const RoundingLoops& loops, Format source, const uint8_t* stored, const OuterScales& scales, int64_t row,
                  int64_t begin, int64_t end, Format target, uint8_t* out) {
    const size_t element = stored_block(source).bytes;
    float values[kRun];
    for (int64_t i = begin; i < end; i += kRun) {
        const int64_t count = std::min(kRun, end - i);
        loops.decode(source, stored + i * element, count, values);
        apply_scales(scales, row, i, count, values);
        loops.encode(target, values, count, out);
        out += stored_row_bytes(target, count);
    }
}

}  // namespace rooftree
