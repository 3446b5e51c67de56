// What this machine can do at the most: loops that read memory, or compute on registers, and do nothing else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace rooftree {

struct Stretch;

// The loops of one instruction set: those instructions that its kernels use.
struct LimitLoops {
    struct Arithmetic {
        const char* way;
        int operations;  // of one round, a multiply-add counted as two
        void (*run)(int64_t rounds);
    };
    void (*read)(const uint8_t* data, size_t bytes);  // bytes: a multiple of 512
    Arithmetic fp32;
    Arithmetic int8[2];  // the ways that there are; no loop: no such way
};

const LimitLoops& portable_limits();
#if defined(ROOFTREE_X86)
const LimitLoops& avx2_limits();
const LimitLoops& avx512_limits();
#endif

// The processor of each thread, by the system's number.
using Processors = std::vector<int>;

// Each is of all threads together, the best of `tries`, in bytes or operations per second. Throw std::invalid_argument
// for an instruction set that is not available, for numbers below 1, and where the system refuses the threads.
//
// Reading about `bytes` of what is there, all of it over and over where it is less: then it may come from a cache, as it
// would for whoever uses it so.
double read_rate(const std::string& isa, const Processors& processors, const std::vector<Stretch>& memory, size_t bytes, int tries);
// Reading as many bytes of new memory once.
double read_rate(const std::string& isa, const Processors& processors, size_t bytes, int tries);
double fp32_rate(const std::string& isa, const Processors& processors, int64_t rounds, int tries);
std::vector<std::pair<std::string, double>> int8_rates(const std::string& isa, const Processors& processors, int64_t rounds,
                                                       int tries);

}  // namespace rooftree
