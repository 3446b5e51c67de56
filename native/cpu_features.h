// Which kernels this processor can run, best first.
#pragma once

#include <string>
#include <vector>

#include "kernels.h"

namespace rooftree {

std::vector<std::string> supported_isas();

// By name. Throws std::invalid_argument naming the supported ones.
const Kernels& kernels_for(const std::string& isa);

}  // namespace rooftree
