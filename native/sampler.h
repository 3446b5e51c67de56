// Chooses one token from one row of logits.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels.h"

namespace rooftree {

constexpr int kMaxTopLogprobs = 20;

// As the executor packs it, one per sampled row (Python: `struct` format "<6f2iQ7i4x").
struct SamplingRow {
    float temperature, top_p, min_p, presence, frequency, repetition;
    int32_t top_k;          // <= 0: off
    int32_t num_logprobs;   // -1: none
    uint64_t seed;
    int32_t counter;        // output tokens so far: the random number's place in the stream
    int32_t num_prompt, num_tokens;  // of the request's tokens (penalties)
    int32_t bias_begin, bias_end;    // into the step's logit biases
    int32_t ban_begin, ban_end;      // into the step's banned ids
    int32_t padding;
};

enum class SampleStatus : int32_t { Chosen = 0, NotFinite = 1, AllBanned = 2 };

struct SampleResult {
    int32_t token;  // -1 unless chosen
    SampleStatus status;
    float logprob;
    int32_t rank;
    int32_t num_top;
    int32_t top_ids[kMaxTopLogprobs];
    float top_logprobs[kMaxTopLogprobs];
};

struct SamplingInputs {
    const int32_t* bias_ids;
    const float* bias_values;
    const int32_t* banned_ids;
};

// Uniform in [0, 1), a pure function of its arguments (Philox 4x32-10, Salmon et al. 2011).
double philox_uniform(uint64_t seed, uint32_t counter);

// One thread's working memory.
class Sampler {
   public:
    Sampler(const Kernels& kernels, int64_t vocab);

    // `logits` [vocab] is modified. `tokens`: the request's tokens, prompt first.
    void sample(float* logits, const SamplingRow& row, const SamplingInputs& inputs, const int32_t* tokens, SampleResult* result);

   private:
    void apply_bias_and_bans(float* logits, const SamplingRow& row, const SamplingInputs& inputs);
    void apply_penalties(float* logits, const SamplingRow& row, const int32_t* tokens);
    int32_t choose(const float* logits, const SamplingRow& row, float largest);
    void candidates_top_k(const float* logits, int64_t k);
    void candidates_above(const float* p, float threshold);
    void sort_candidates(const float* logits);
    void fill_top(const float* logits, int n, double log_normaliser, SampleResult* result);

    const Kernels& kernels_;
    const int64_t vocab_;
    std::vector<float> raw_, p_;
    std::vector<int32_t> candidates_;
    std::vector<int32_t> counts_;  // by token, zero between calls
};

}  // namespace rooftree
