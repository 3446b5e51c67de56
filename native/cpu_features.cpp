#include "cpu_features.h"

#include <stdexcept>

namespace rooftree {

namespace {

std::vector<const Kernels*> supported() {
    std::vector<const Kernels*> result;
#if defined(ROOFTREE_X86)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
    if (avx512 && __builtin_cpu_supports("avx512bf16")) result.push_back(&avx512_bf16_kernels());
    if (avx512) result.push_back(&avx512_kernels());
    if (avx2) result.push_back(&avx2_kernels());
#endif
    result.push_back(&portable_kernels());
    return result;
}

}  // namespace

std::vector<std::string> supported_isas() {
    std::vector<std::string> names;
    for (const Kernels* kernels : supported()) names.push_back(kernels->name);
    return names;
}

const Kernels& kernels_for(const std::string& isa) {
    std::string names;
    for (const Kernels* kernels : supported()) {
        if (isa == kernels->name) return *kernels;
        names += names.empty() ? kernels->name : std::string(", ") + kernels->name;
    }
    throw std::invalid_argument("instruction set '" + isa + "' is not available here; this machine runs: " + names);
}

}  // namespace rooftree
