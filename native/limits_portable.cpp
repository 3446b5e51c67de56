// Loops for any machine, as the compiler makes them of vectors of 16 bytes.
#define ROOFTREE_ISA portable
#include "limits.h"
#include "limits_impl.h"

namespace rooftree::portable {

namespace {

typedef uint64_t Words __attribute__((vector_size(16)));
typedef float Floats __attribute__((vector_size(16)));
typedef int32_t Ints __attribute__((vector_size(16)));

void read(const uint8_t* data, size_t bytes) { read_words<Words>(data, bytes); }

void fp32(int64_t rounds) {
    chains(rounds, Floats{}, Floats{} + 0.999f, Floats{} + 1e-3f, [](Floats sum, Floats x, Floats y) { return sum * x + y; });
}

void int32_products(int64_t rounds) {
    chains(rounds, Ints{}, Ints{} + 3, Ints{} - 2, [](Ints sum, Ints x, Ints y) { return sum + x * y; });
}

}  // namespace

}  // namespace rooftree::portable

namespace rooftree {
const LimitLoops& portable_limits() {
    static const LimitLoops loops{
        portable::read,
        {"multiply, add", 2 * 4 * portable::kChains, portable::fp32},
        {{"widened to int32", 2 * 4 * portable::kChains, portable::int32_products}},
    };
    return loops;
}
}  // namespace rooftree
