// Rounding with AVX2.
#define ROOFTREE_ISA avx2
#include "rounding_impl.h"

namespace rooftree {
const RoundingLoops& avx2_rounding() {
    static const RoundingLoops loops{avx2::decode, avx2::encode};
    return loops;
}
}  // namespace rooftree
