// Rounding for any machine.
#define ROOFTREE_ISA portable
#include "rounding_impl.h"

namespace rooftree {
const RoundingLoops& portable_rounding() {
    static const RoundingLoops loops{portable::decode, portable::encode};
    return loops;
}
}  // namespace rooftree
