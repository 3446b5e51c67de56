#include "limits.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <thread>

#if defined(__linux__)
#include <sched.h>
#endif

#include "cpu_features.h"
#include "pack.h"

namespace rooftree {

namespace {

// Bytes that a reading loop takes at a time.
constexpr size_t kReadUnit = 512;

const LimitLoops& limits_for(const std::string& isa) {
    const std::string name = kernels_for(isa).name;
#if defined(ROOFTREE_X86)
    if (name.rfind("avx512", 0) == 0) return avx512_limits();  // also with further extensions
    if (name == "avx2") return avx2_limits();
#endif
    return portable_limits();
}

// Ties the calling thread to one of the processors that this process may use: on a busy machine new threads would
// otherwise share one for a while.
void pin([[maybe_unused]] int index) {
#if defined(__linux__)
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
    index %= std::max(1, CPU_COUNT(&allowed));
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
double best_seconds(int threads, int tries, const std::function<void(int)>& work) {
    if (threads < 1 || tries < 1) throw std::invalid_argument("threads and tries must be at least 1");
    using Clock = std::chrono::steady_clock;
    double best = 1e30;
    for (int t = 0; t < tries; t++) {
        std::atomic<int> ready{0};
        std::atomic<Clock::rep> begin{0};
        std::vector<double> ends(threads);
        std::vector<std::thread> team;
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
    return std::max(best, 1e-9);
}

double rate(const LimitLoops::Arithmetic& loop, int threads, int64_t rounds, int tries) {
    if (rounds < 1) throw std::invalid_argument("rounds must be at least 1");
    const double seconds = best_seconds(threads, tries, [&](int) { loop.run(rounds); });
    return static_cast<double>(loop.operations) * rounds * threads / seconds;
}

}  // namespace

double read_rate(const std::string& isa, int threads, size_t bytes, int tries) {
    const LimitLoops& loops = limits_for(isa);
    if (threads < 1 || bytes < kReadUnit * threads) throw std::invalid_argument("too few bytes to read, or no thread");
    const Buffer data(bytes);
    std::memset(data.data(), 1, bytes);
    const size_t share = bytes / threads / kReadUnit * kReadUnit;
    const double seconds = best_seconds(threads, tries, [&](int i) { loops.read(data.data() + i * share, share); });
    return static_cast<double>(share) * threads / seconds;
}

double fp32_rate(const std::string& isa, int threads, int64_t rounds, int tries) {
    return rate(limits_for(isa).fp32, threads, rounds, tries);
}

std::vector<std::pair<std::string, double>> int8_rates(const std::string& isa, int threads, int64_t rounds, int tries) {
    std::vector<std::pair<std::string, double>> rates;
    for (const LimitLoops::Arithmetic& loop : limits_for(isa).int8)
        rates.emplace_back(loop.way, rate(loop, threads, rounds, tries));
    return rates;
}

}  // namespace rooftree
