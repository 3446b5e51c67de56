// The loops of limits.h for the instruction set of the including file, within its namespace.
namespace rooftree::ROOFTREE_ISA {

namespace {

// Enough independent sums to hide the latency of two units of four to five cycles each.
constexpr int kChains = 12;

// Makes the compiler believe that a register has changed, so that no loop-invariant work leaves the loop.
template <typename V>
inline void touch(V& value) {
#if defined(__AVX512F__)
    asm volatile("" : "+v"(value));
#elif defined(__x86_64__)
    asm volatile("" : "+x"(value));
#elif defined(__aarch64__)
    asm volatile("" : "+w"(value));
#else
    asm volatile("" : "+m"(value));
#endif
}

template <typename V>
inline void keep(const V& value) {
    asm volatile("" : : "m"(value));
}

// `round(sum, x, y)` gives the next sum. The sums are locals by value: whatever has its address taken goes to memory.
template <typename Sum, typename V, typename Round>
inline void chains(int64_t rounds, Sum zero, V x, V y, Round round) {
    Sum a = zero, b = zero, c = zero, d = zero, e = zero, f = zero;
    Sum g = zero, h = zero, i = zero, j = zero, k = zero, l = zero;
    for (int64_t n = 0; n < rounds; n++) {
        a = round(a, x, y), touch(x), b = round(b, x, y), touch(x), c = round(c, x, y), touch(x);
        d = round(d, x, y), touch(x), e = round(e, x, y), touch(x), f = round(f, x, y), touch(x);
        g = round(g, x, y), touch(x), h = round(h, x, y), touch(x), i = round(i, x, y), touch(x);
        j = round(j, x, y), touch(x), k = round(k, x, y), touch(x), l = round(l, x, y), touch(x);
    }
    for (const Sum& sum : {a, b, c, d, e, f, g, h, i, j, k, l}) keep(sum);
}

// Words: a vector of uint64_t.
template <typename Words>
inline void read_words(const uint8_t* data, size_t bytes) {
    const Words* p = reinterpret_cast<const Words*>(data);
    Words sum[8] = {};
    for (size_t i = 0; i < bytes / sizeof(Words); i += 8)
        for (int c = 0; c < 8; c++) sum[c] |= p[i + c];
    for (int c = 0; c < 8; c++) keep(sum[c]);
}

}  // namespace

}  // namespace rooftree::ROOFTREE_ISA
