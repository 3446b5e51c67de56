#include "sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace rooftree {

namespace {

constexpr float kGreedyBelow = 1e-5f;  // a temperature under this is greedy: it could only overflow
constexpr int32_t kInPrompt = 1 << 30;

// Higher logit first, lower id first among equals.
struct Better {
    const float* logits;
    bool operator()(int32_t a, int32_t b) const { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; }
};

int32_t argmax(const float* logits, int64_t n) {
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    return static_cast<int32_t>(best);
}

}  // namespace

double philox_uniform(uint64_t seed, uint32_t counter) {
    uint32_t c[4] = {counter, 0, 0, 0};
    uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
    for (int round = 0; round < 10; round++) {
        const uint64_t a = static_cast<uint64_t>(0xD2511F53u) * c[0];
        const uint64_t b = static_cast<uint64_t>(0xCD9E8D57u) * c[2];
        const uint32_t next[4] = {static_cast<uint32_t>(b >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(b),
                                  static_cast<uint32_t>(a >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(a)};
        std::copy(next, next + 4, c);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    const uint64_t bits = (static_cast<uint64_t>(c[0]) << 32 | c[1]) >> 11;
    return static_cast<double>(bits) * 0x1p-53;
}

Sampler::Sampler(const Kernels& kernels, int64_t vocab)
    : kernels_(kernels), vocab_(vocab), raw_(vocab), p_(vocab), counts_(vocab) {
    candidates_.reserve(vocab);
}

void Sampler::sample(float* logits, const SamplingRow& row, const SamplingInputs& inputs, const int32_t* tokens,
                     SampleResult* result) {
    float largest = kernels_.max_finite(logits, vocab_);
    result->num_top = 0;
    result->token = -1;
    result->status = SampleStatus::NotFinite;
    if (!std::isfinite(largest)) return;

    const bool wants_logprobs = row.num_logprobs >= 0;
    double log_normaliser = 0.0;
    if (wants_logprobs) {
        log_normaliser = largest + std::log(kernels_.exp_sum(logits, vocab_, largest, 1.0f, nullptr));
        fill_top(logits, row.num_logprobs, log_normaliser, result);
        std::copy(logits, logits + vocab_, raw_.begin());
    }
    const bool edits = row.bias_begin != row.bias_end || row.ban_begin != row.ban_end;
    const bool penalties = row.presence != 0.0f || row.frequency != 0.0f || row.repetition != 1.0f;
    if (edits) apply_bias_and_bans(logits, row, inputs);
    if (penalties) apply_penalties(logits, row, tokens);
    if (edits || penalties) largest = *std::max_element(logits, logits + vocab_);
    result->status = SampleStatus::AllBanned;
    if (!std::isfinite(largest)) return;
    result->status = SampleStatus::Chosen;

    result->token = choose(logits, row, largest);
    if (wants_logprobs) {
        const float chosen = raw_[result->token];
        result->logprob = static_cast<float>(chosen - log_normaliser);
        result->rank = 1 + static_cast<int32_t>(std::count_if(raw_.begin(), raw_.end(), [&](float x) { return x > chosen; }));
    }
}

void Sampler::apply_bias_and_bans(float* logits, const SamplingRow& row, const SamplingInputs& inputs) {
    for (int32_t i = row.bias_begin; i < row.bias_end; i++) logits[inputs.bias_ids[i]] += inputs.bias_values[i];
    for (int32_t i = row.ban_begin; i < row.ban_end; i++)
        logits[inputs.banned_ids[i]] = -std::numeric_limits<float>::infinity();
}

// Repetition counts prompt and output, presence and frequency the output alone.
void Sampler::apply_penalties(float* logits, const SamplingRow& row, const int32_t* tokens) {
    for (int32_t i = 0; i < row.num_tokens; i++) {
        int32_t& count = counts_[tokens[i]];
        if (i < row.num_prompt) count |= kInPrompt;
        else count++;
    }
    for (int32_t i = 0; i < row.num_tokens; i++) {
        const int32_t count = counts_[tokens[i]];
        if (count == 0) continue;  // seen already
        counts_[tokens[i]] = 0;
        float& logit = logits[tokens[i]];
        if (std::isinf(logit)) continue;  // banned
        logit = logit > 0.0f ? logit / row.repetition : logit * row.repetition;
        const int32_t in_output = count & ~kInPrompt;
        if (in_output > 0) logit -= row.frequency * static_cast<float>(in_output) + row.presence;
        logit = std::clamp(logit, -std::numeric_limits<float>::max(), std::numeric_limits<float>::max());
    }
}

int32_t Sampler::choose(const float* logits, const SamplingRow& row, float largest) {
    if (row.temperature < kGreedyBelow || row.top_k == 1 || row.top_p <= 0.0f) return argmax(logits, vocab_);
    const bool top_k = row.top_k > 0 && row.top_k < vocab_;
    const double total = kernels_.exp_sum(logits, vocab_, largest, row.temperature, p_.data());
    const double u = philox_uniform(row.seed, static_cast<uint32_t>(row.counter));

    if (!top_k && row.top_p >= 1.0f && row.min_p <= 0.0f) {
        double remaining = u * total;
        int64_t last = 0;
        for (int64_t i = 0; i < vocab_; i++) {
            if (p_[i] <= 0.0f) continue;
            last = i;
            remaining -= p_[i];
            if (remaining < 0.0) break;
        }
        return static_cast<int32_t>(last);
    }

    double kept = total;
    if (top_k) {
        candidates_top_k(logits, row.top_k);
        kept = 0.0;
        for (int32_t id : candidates_) kept += p_[id];
    } else if (row.top_p < 1.0f) {
        // The likeliest tokens hold nearly all the mass: look at ever more of them until they hold enough.
        for (float threshold = 1e-2f;; threshold *= 1e-2f) {
            candidates_above(p_.data(), threshold > 1e-12f ? threshold : 0.0f);
            double mass = 0.0;
            for (int32_t id : candidates_) mass += p_[id];
            if (mass >= row.top_p * total || threshold <= 1e-12f) break;
        }
        sort_candidates(logits);
    } else {
        candidates_above(p_.data(), row.min_p);
        sort_candidates(logits);
    }

    // Most likely first: top-p and min-p both keep a prefix, never empty.
    size_t count = 0;
    double mass = 0.0;
    while (count < candidates_.size()) {
        const float p = p_[candidates_[count]];
        if (count > 0 && (p < row.min_p || p <= 0.0f || (row.top_p < 1.0f && mass >= row.top_p * kept))) break;
        mass += p;
        count++;
    }
    double remaining = u * mass;
    for (size_t i = 0; i + 1 < count; i++) {
        remaining -= p_[candidates_[i]];
        if (remaining < 0.0) return candidates_[i];
    }
    return candidates_[count - 1];
}

// The k best, sorted. A heap whose worst member is on top: most of the vocabulary fails one comparison.
void Sampler::candidates_top_k(const float* logits, int64_t k) {
    const Better better{logits};
    candidates_.resize(k);
    std::iota(candidates_.begin(), candidates_.end(), 0);
    std::make_heap(candidates_.begin(), candidates_.end(), better);
    for (int64_t i = k; i < vocab_; i++) {
        if (logits[i] <= logits[candidates_.front()]) continue;  // an equal one with a higher id is worse
        std::pop_heap(candidates_.begin(), candidates_.end(), better);
        candidates_.back() = static_cast<int32_t>(i);
        std::push_heap(candidates_.begin(), candidates_.end(), better);
    }
    std::sort_heap(candidates_.begin(), candidates_.end(), better);
}

void Sampler::candidates_above(const float* p, float threshold) {
    candidates_.clear();
    for (int64_t i = 0; i < vocab_; i++)
        if (p[i] >= threshold) candidates_.push_back(static_cast<int32_t>(i));
}

void Sampler::sort_candidates(const float* logits) { std::sort(candidates_.begin(), candidates_.end(), Better{logits}); }

void Sampler::fill_top(const float* logits, int n, double log_normaliser, SampleResult* result) {
    if (n <= 0) return;
    const int64_t count = std::min<int64_t>({n, kMaxTopLogprobs, vocab_});
    candidates_top_k(logits, count);
    result->num_top = static_cast<int32_t>(count);
    for (int64_t i = 0; i < count; i++) {
        result->top_ids[i] = candidates_[i];
        result->top_logprobs[i] = static_cast<float>(logits[candidates_[i]] - log_normaliser);
    }
}

}  // namespace rooftree
