// Quantised activations as the products read them. The rows of a value stand in panels of 8, what is left over in
// panels of 4, 2 and 1, and a panel is one stream along the inputs, so that a kernel reads the rows of a register tile
// from one pointer:
//
//   step of 32 inputs = [ q: int8 width x 32 | scale: float width | sum: float width | negated8, negated8_first: int32 width ]
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "tensor.h"

namespace rooftree {

constexpr int kPanelRows = 8;

constexpr size_t panel_step_bytes(int width) { return static_cast<size_t>(width) * (kBlock + 16); }

// A row's share of its panel.
inline size_t quantised_row_bytes(int64_t k) { return static_cast<size_t>(k / kBlock) * panel_step_bytes(1); }

struct Panel {
    int first_row, width;
};

// The panel of row `row` among `rows`.
inline Panel panel_of(int row, int rows) {
    int first = rows / kPanelRows * kPanelRows;
    if (row < first) return {row / kPanelRows * kPanelRows, kPanelRows};
    int width = kPanelRows / 2;
    for (; (rows & width) == 0 || row >= first + width; width /= 2) first += rows & width;
    return {first, width};
}

inline int num_panels(int rows) { return rows / kPanelRows + __builtin_popcount(rows % kPanelRows); }

// The panels of `rows` rows, numbered in their order.
inline Panel nth_panel(int index, int rows) {
    const int full = rows / kPanelRows;
    Panel panel = panel_of(std::min(index, full) * kPanelRows, rows);
    for (int i = full; i < index; i++) panel = panel_of(panel.first_row + panel.width, rows);
    return panel;
}

// What one step of a panel holds.
template <typename Byte, typename Int8, typename Float, typename Int32>
struct PanelStepView {
    Int8* q;                // [width, 32]
    Float* scale;           // [width], as all that follow
    Float* sum;             // scale * sum of the inputs
    Int32* negated8;        // -8 * sum of the inputs: takes an offset of 8 out of every weight
    Int32* negated8_first;  // -8 * sum of the first 16

    PanelStepView(Byte* panel, int width, int64_t step) {
        Byte* at = panel + step * panel_step_bytes(width);
        q = reinterpret_cast<Int8*>(at);
        scale = reinterpret_cast<Float*>(at + width * kBlock);
        sum = scale + width;
        negated8 = reinterpret_cast<Int32*>(sum + width);
        negated8_first = negated8 + width;
    }
};
using PanelStep = PanelStepView<const uint8_t, const int8_t, const float, const int32_t>;
using MutablePanelStep = PanelStepView<uint8_t, int8_t, float, int32_t>;

// One row to be written.
struct QuantisedRow {
    uint8_t* panel;
    int width, lane;
};

// Four inputs as one word, to be spread over all lanes.
static inline int32_t four_inputs(const int8_t* q) {
    int32_t word;
    std::memcpy(&word, q, 4);
    return word;
}

}  // namespace rooftree
