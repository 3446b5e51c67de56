// What this machine can do at the most: memory read, fp32 multiply-add, int8 dot products in registers.
// Built by limits.py with -O3 -march=native. Prints one JSON object. Argument: the number of threads.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <sched.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>
#endif

namespace {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif
typedef float Floats __attribute__((vector_size(kVectorBytes)));
typedef uint64_t Words __attribute__((vector_size(kVectorBytes)));

constexpr int kTries = 7;
constexpr int64_t kRounds = 30'000'000;
// Enough independent sums to hide the latency of two units of four to five cycles each.
constexpr int kChains = 12;
constexpr size_t kReadBytes = size_t{1} << 29;

// Makes the compiler believe that a register has changed, so that no loop-invariant work leaves the loop.
template <typename V>
inline void touch(V& value) {
#if defined(__AVX512F__)
    asm volatile("" : "+v"(value));
#elif defined(__x86_64__)
    asm volatile("" : "+x"(value));
#else
    asm volatile("" : "+w"(value));
#endif
}

template <typename V>
void keep(const V& value) {
    static std::atomic<unsigned> sink;
    unsigned char first;
    std::memcpy(&first, &value, 1);
    sink += first;
}

// Ties the calling thread to one of the processors that this process may use: on a busy machine new threads would
// otherwise share one for a while.
void pin([[maybe_unused]] int index) {
#if defined(__linux__)
    static const cpu_set_t allowed = [] {
        cpu_set_t set;
        sched_getaffinity(0, sizeof set, &set);
        return set;
    }();
    index %= CPU_COUNT(&allowed);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &allowed) || index-- > 0) continue;
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        sched_setaffinity(0, sizeof one, &one);
        return;
    }
#endif
}

// Best of several tries: seconds in which all threads have done the work, begun together.
double best_seconds(int threads, const std::function<void(int)>& work) {
    double best = 1e30;
    for (int t = 0; t < kTries; t++) {
        std::atomic<int> ready{0};
        std::vector<double> ends(threads);
        std::vector<std::thread> team;
        using Clock = std::chrono::steady_clock;
        std::atomic<Clock::rep> begin{0};
        for (int i = 0; i < threads; i++) team.emplace_back([&, i] {
            pin(i);
            if (ready.fetch_add(1) == threads - 1) begin = Clock::now().time_since_epoch().count();
            while (begin.load() == 0) std::this_thread::yield();
            work(i);
            const auto end = Clock::now().time_since_epoch();
            ends[i] = std::chrono::duration<double>(end - Clock::duration(begin.load())).count();
        });
        for (std::thread& thread : team) thread.join();
        best = std::min(best, *std::max_element(ends.begin(), ends.end()));
    }
    return best;
}

double read_bandwidth(const std::vector<Words>& data, int threads) {
    const size_t share = data.size() / threads / 8 * 8;
    const double seconds = best_seconds(threads, [&](int i) {
        const Words* p = data.data() + i * share;
        Words sum[8] = {};
        for (size_t j = 0; j < share; j += 8)
            for (int c = 0; c < 8; c++) sum[c] |= p[j + c];
        for (int c = 0; c < 8; c++) keep(sum[c]);
    });
    return share * threads * kVectorBytes / seconds / 1e9;
}

// Giga-operations per second of all threads. `round(acc, x, y)` gives the next sum; `ops` counts the operations
// of all elements of one round. The sums are locals by value: whatever has its address taken goes to memory.
template <typename Sum, typename V, typename Round>
double peak(int threads, double ops, Sum zero, V x_value, V y_value, Round round) {
    const double seconds = best_seconds(threads, [=](int) {
        V x = x_value, y = y_value;
        Sum a = zero, b = zero, c = zero, d = zero, e = zero, f = zero;
        Sum g = zero, h = zero, i = zero, j = zero, k = zero, l = zero;
        for (int64_t n = 0; n < kRounds; n++) {
            a = round(a, x, y), touch(x), b = round(b, x, y), touch(x), c = round(c, x, y), touch(x);
            d = round(d, x, y), touch(x), e = round(e, x, y), touch(x), f = round(f, x, y), touch(x);
            g = round(g, x, y), touch(x), h = round(h, x, y), touch(x), i = round(i, x, y), touch(x);
            j = round(j, x, y), touch(x), k = round(k, x, y), touch(x), l = round(l, x, y), touch(x);
        }
        for (const Sum& sum : {a, b, c, d, e, f, g, h, i, j, k, l}) keep(sum);
    });
    return ops * kChains * kRounds * threads / seconds / 1e9;
}

double fp32_peak(int threads) {
    const Floats x = Floats{} + 0.999f, y = Floats{} + 1e-3f;
    return peak(threads, 2.0 * kVectorBytes / 4, Floats{}, x, y, [](Floats acc, Floats m, Floats n) { return acc * m + n; });
}

void print_int8_peaks([[maybe_unused]] int threads) {
    [[maybe_unused]] const char* comma = "";
    [[maybe_unused]] auto print = [&](const char* name, double gops) {
        std::printf("%s\"%s\": %.1f", comma, name, gops);
        comma = ", ";
    };
#if defined(__AVX512VNNI__)
    print("dpbusd, 512 bits",
          peak(threads, 128, _mm512_setzero_si512(), _mm512_set1_epi8(3), _mm512_set1_epi8(-2),
               [](__m512i acc, __m512i w, __m512i x) { return _mm512_dpbusd_epi32(acc, w, x); }));
#endif
#if defined(__AVX2__)
    const __m256i zero = _mm256_setzero_si256(), w = _mm256_set1_epi8(3), x = _mm256_set1_epi8(-2);
    print("maddubs + madd + add32, 256 bits", peak(threads, 64, zero, w, x, [](__m256i acc, __m256i u, __m256i s) {
              const __m256i pairs = _mm256_maddubs_epi16(u, s);
              return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
          }));
    print("maddubs + add16, 256 bits", peak(threads, 64, zero, w, x, [](__m256i acc, __m256i u, __m256i s) {
              return _mm256_add_epi16(acc, _mm256_maddubs_epi16(u, s));
          }));
#endif
#if defined(__ARM_FEATURE_DOTPROD)
    print("sdot, 128 bits", peak(threads, 32, vdupq_n_s32(0), vdupq_n_s8(3), vdupq_n_s8(-2),
                                 [](int32x4_t acc, int8x16_t w, int8x16_t x) { return vdotq_s32(acc, w, x); }));
#endif
}

}  // namespace

int main(int argc, char** argv) {
    const int threads = argc > 1 ? std::max(1, std::atoi(argv[1])) : 1;
    const Words ones = Words{} + 1;
    const std::vector<Words> data(kReadBytes / kVectorBytes, ones);
    std::printf("{\"threads\": %d, \"read_gb_per_s\": %.2f, ", threads, read_bandwidth(data, threads));
    std::printf("\"fp32_gflops\": %.1f, \"int8_gops\": {", fp32_peak(threads));
    print_int8_peaks(threads);
    std::printf("}}\n");
}
