#include "limits.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <system_error>
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

// Ties the calling thread to a processor, if the system lets it: on a busy machine new threads would otherwise share
// one for a while.
void pin([[maybe_unused]] int processor) {
#if defined(__linux__)
    if (processor < 0 || processor >= CPU_SETSIZE) return;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(processor, &one);
    sched_setaffinity(0, sizeof one, &one);
#endif
}

// Seconds in which a thread on each processor has done the work, all begun together.
double seconds_together(const Processors& processors, const std::function<void(int)>& work) {
    using Clock = std::chrono::steady_clock;
    constexpr Clock::rep kWait = 0, kGiveUp = -1;
    const int threads = static_cast<int>(processors.size());
    std::atomic<int> ready{0};
    std::atomic<Clock::rep> begin{kWait};
    std::vector<double> ends(threads);
    std::vector<std::thread> team;
    const auto member = [&](int i) {
        pin(processors[i]);
        if (ready.fetch_add(1) == threads - 1) begin = Clock::now().time_since_epoch().count();
        while (begin.load() == kWait) std::this_thread::yield();
        if (begin.load() == kGiveUp) return;
        work(i);
        const auto end = Clock::now().time_since_epoch();
        ends[i] = std::chrono::duration<double>(end - Clock::duration(begin.load())).count();
    };
    try {
        for (int i = 0; i < threads; i++) team.emplace_back(member, i);
    } catch (const std::system_error&) {
        begin = kGiveUp;  // those that started wait for the others
    }
    for (std::thread& thread : team) thread.join();
    if (begin.load() == kGiveUp)
        throw std::invalid_argument("the system refuses to start " + std::to_string(threads) + " threads");
    return *std::max_element(ends.begin(), ends.end());
}

double best_seconds(const Processors& processors, int tries, const std::function<void(int)>& work) {
    if (processors.empty() || tries < 1) throw std::invalid_argument("there must be a processor and a try");
    double best = seconds_together(processors, work);
    for (int t = 1; t < tries; t++) best = std::min(best, seconds_together(processors, work));
    return std::max(best, 1e-9);
}

double rate(const LimitLoops::Arithmetic& loop, const Processors& processors, int64_t rounds, int tries) {
    if (rounds < 1) throw std::invalid_argument("rounds must be at least 1");
    const double seconds = best_seconds(processors, tries, [&](int) { loop.run(rounds); });
    return static_cast<double>(loop.operations) * rounds * processors.size() / seconds;
}

// What thread i reads of a stretch: `bytes` from data + i * stride.
struct Share {
    const uint8_t* data;
    size_t bytes, stride;
};

// Of stretches up to `bytes` in all. What is too small to be shared is read by every thread.
std::vector<Share> share_out(const std::vector<Stretch>& memory, size_t threads, size_t bytes) {
    std::vector<Share> shares;
    for (const Stretch& stretch : memory) {
        const size_t size = std::min(stretch.bytes, bytes);
        const size_t part = threads ? size / threads / kReadUnit * kReadUnit : 0;
        if (part) shares.push_back({stretch.data, part, part});
        else shares.push_back({stretch.data, size / kReadUnit * kReadUnit, 0});
        bytes -= size;
    }
    return shares;
}

}  // namespace

double read_rate(const std::string& isa, const Processors& processors, const std::vector<Stretch>& memory, size_t bytes, int tries) {
    const LimitLoops& loops = limits_for(isa);
    const size_t threads = processors.size();
    const std::vector<Share> shares = share_out(memory, threads, bytes);
    size_t once = 0;
    for (const Share& share : shares) once += share.bytes;
    if (threads < 1 || once == 0) throw std::invalid_argument("too few bytes to read, or no processor");
    const size_t rounds = std::max<size_t>(1, bytes / (once * threads));
    const double seconds = best_seconds(processors, tries, [&](int i) {
        for (size_t round = 0; round < rounds; round++)
            for (const Share& share : shares) loops.read(share.data + i * share.stride, share.bytes);
    });
    return static_cast<double>(once) * rounds * threads / seconds;
}

double read_rate(const std::string& isa, const Processors& processors, size_t bytes, int tries) {
    if (bytes < kReadUnit * processors.size()) throw std::invalid_argument("too few bytes to read");
    const Buffer data(bytes);
    std::memset(data.data(), 1, bytes);
    return read_rate(isa, processors, {{data.data(), bytes}}, bytes, tries);
}

double fp32_rate(const std::string& isa, const Processors& processors, int64_t rounds, int tries) {
    return rate(limits_for(isa).fp32, processors, rounds, tries);
}

std::vector<std::pair<std::string, double>> int8_rates(const std::string& isa, const Processors& processors, int64_t rounds,
                                                       int tries) {
    std::vector<std::pair<std::string, double>> rates;
    for (const LimitLoops::Arithmetic& loop : limits_for(isa).int8)
        if (loop.run) rates.emplace_back(loop.way, rate(loop, processors, rounds, tries));
    return rates;
}

}  // namespace rooftree
