// Rows of floats rounded to another storage format on their way into tiles.
#pragma once

#include "pack.h"
#include "rounding_loops.h"

namespace rooftree {

// The loops for an instruction set of the kernels, by name. Throws std::invalid_argument for one that is not available.
const RoundingLoops& rounding_for(const std::string& isa);

bool can_round(Format source, Format target);

// Inputs `begin` to `end` of row `row` of a matrix, in whole blocks of `target`. The row is stored at `stored`.
void round_inputs(const RoundingLoops& loops, Format source, const uint8_t* stored, const OuterScales& scales, int64_t row,
                  int64_t begin, int64_t end, Format target, uint8_t* out);

}  // namespace rooftree
