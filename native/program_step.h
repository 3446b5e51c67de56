// The inside of a program, for the files that define it: the step at hand, its operations, working memory.
#pragma once

#include <stdexcept>

#include "program.h"

namespace rooftree {

// A stretch of attention work: query tokens [begin, end) of a request, one KV head, partitions [first, end).
struct AttentionItem {
    int request, kv_head, begin, end, first_partition, end_partition;
    int next_partition;  // of the same head, which the thread that takes this item will probably read next
    int64_t partial;     // where its partitions' states are kept for merging; -1: it covers all and writes its output
};

// A lone query token whose partitions were dealt out: their states lie from `partial` on, head by head.
struct SplitRequest {
    int request, partitions;
    int64_t partial;
};

// The step's attention work in the layers of one sliding window (0: none).
struct AttentionPlan {
    int window;
    std::vector<AttentionItem> items;
    std::vector<SplitRequest> splits;
};

// What the current step consists of, spread out for the operations.
struct Program::Step {
    StepRequest* requests = nullptr;
    int num_requests = 0, num_tokens = 0, num_samples = 0;
    StepTables tables{};
    const SamplingRow* sampling = nullptr;
    const SamplingInputs* sampling_inputs = nullptr;
    SampleResult* results = nullptr;
    std::vector<int32_t> request_of_token, position, sampled_token, sampled_request;
    std::vector<int64_t> pieces;  // of work, by operation
    std::vector<AttentionPlan> attention;  // for each window of the model
    std::vector<float> partials;
};

// One thread's working memory.
struct Program::Thread {
    std::vector<float> products, attention, state;
    std::unique_ptr<Sampler> sampler;
};

struct Program::Op {
    virtual ~Op() = default;
    // Number of pieces of work, for the step at hand.
    virtual int64_t pieces(const Program& p) const = 0;
    virtual void work(Program& p, int64_t piece, Thread& thread) const = 0;
};

template <typename T>
void Program::add(T op) {
    if (arena_) throw std::invalid_argument("the program is finished");
    ops_.push_back(std::make_unique<T>(std::move(op)));
}

}  // namespace rooftree
