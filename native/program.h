// A model's step, recorded once as a list of operations and replayed for any batch.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "kernels.h"
#include "kv_cache.h"
#include "sampler.h"
#include "thread_pool.h"

namespace rooftree {

// One request's part of a step (Python: five int32 columns).
struct StepRequest {
    int32_t table_row;   // its row in the token and block tables
    int32_t start;       // position of its first token in this step
    int32_t num_tokens;
    int32_t samples;     // 1: a token is chosen after its last one
    int32_t first_token; // index of its first token among the step's, filled in by the program
};

// Tables that the executor keeps from step to step, one row per request.
struct StepTables {
    const int32_t* tokens;
    int64_t tokens_stride;
    const int32_t* blocks;
    int64_t blocks_stride;
};

// Where a value lies: `offset` in the arena, one row per token (or per sampled token) of the step.
struct Value {
    size_t offset;
    size_t row_bytes;
    bool per_sample;
};

// The forms in which an op leaves its result, each the number of a value, or -1: not in this form.
struct Forms {
    int floats;
    int quantised;  // panels of int8 blocks
    int rounded;    // panels of bf16 pairs
};

struct AttentionPlan;

class Program {
   public:
    using Matrix = std::shared_ptr<PackedMatrix>;
    using Vector = std::vector<float>;  // empty: absent

    Program(std::shared_ptr<ThreadPool> pool, const std::string& isa, int max_tokens, int max_samples);
    ~Program();

    // Recording. Values are named by what add_value returned; -1: none. Throws std::invalid_argument on misfits.
    int add_value(size_t offset, size_t row_bytes, bool per_sample);
    void add_embed(Matrix table, int out);
    void add_rms_norm(int in, Vector weight, float eps, Forms out);
    // Floats to either of the other forms, or both.
    void add_narrow(int in, int64_t k, int out_quantised, int out_rounded);
    // The matrices' outputs, one after another, from `column` of out on. `accumulate` adds to what is there.
    void add_linear(int in, std::vector<Matrix> matrices, std::vector<Vector> biases, int out, int64_t column, bool accumulate);
    // silu(gate x) * (up x); x in the form that each matrix takes.
    void add_gated(int gate_in, int up_in, Matrix gate, Matrix up, Vector gate_bias, Vector up_bias, Forms out);
    // qkv rows [q heads | k heads | v heads]: normalises heads (weights may be empty), rotates, writes K and V.
    void add_rope_and_cache(int qkv, int layer, Vector q_norm, Vector k_norm, float eps);
    void add_attention(int qkv, int layer, int window, int out);
    void add_select(int in, int out);
    void add_sample(int logits, int64_t vocab);

    void set_heads(int heads, int kv_heads, int head_dim, Vector cos, Vector sin);
    void set_kv_cache(std::shared_ptr<KvCache> cache) { cache_ = std::move(cache); }
    // Allocates the arena. Nothing can be recorded after it.
    void finish(size_t arena_bytes);

    // Replays the program. `sampling` and `results` hold one entry per request that samples, in order.
    void run(StepRequest* requests, int num_requests, const StepTables& tables, const SamplingRow* sampling,
             const SamplingInputs& sampling_inputs, SampleResult* results);

    const float* logits() const { return logits_ < 0 ? nullptr : reinterpret_cast<const float*>(row(logits_, 0)); }
    const char* isa() const { return kernels_.name; }
    // The operation that a running step is at; may be asked for from any thread.
    size_t current_op() const { return current_.load(std::memory_order_relaxed); }
    int num_ops() const { return static_cast<int>(ops_.size()); }

   private:
    struct Op;
    struct Embed;
    struct RmsNorm;
    struct Narrow;
    struct Linear;
    struct Gated;
    struct RopeAndCache;
    struct Attention;
    struct MergeAttention;
    struct Select;
    struct Sample;
    struct Step;
    struct Thread;

    uint8_t* row(int value, int64_t i) const { return arena_->data() + values_[value].offset + i * values_[value].row_bytes; }
    float* floats(int value, int64_t i) const { return reinterpret_cast<float*>(row(value, i)); }
    int rows(int value) const;
    void check_value(int value, size_t row_bytes) const;
    void check_forms(Forms forms, int64_t k) const;
    void check_input(int value, const PackedMatrix& weights) const;
    // Columns [first, first + count) of a panel's rows, `stride` floats apart, to the forms beside floats.
    void narrow(Forms out, Panel panel, const float* x, size_t stride, int64_t first, int64_t count);
    void prepare(StepRequest* requests, int num_requests, const StepTables& tables);

    // Attention work of a step.
    struct Partitions {
        int first, end;
        int count() const { return end - first; }
    };
    static Partitions partitions_seen(const StepRequest& request, int begin, int end, int window);
    int partitions_per_item(int window) const;
    void prepare_attention();
    int64_t plan_split(AttentionPlan& plan, int index, int run, int64_t partial);
    void plan_tiles(AttentionPlan& plan, int index);
    // A state of `rows` rows: maxima, sums, weighted sums of V.
    size_t attention_state_floats(int rows) const { return static_cast<size_t>(rows) * (head_dim_ + 2); }

    // How the team walks through the operations. An operation is over when its pieces are done, not when every thread
    // has come by: one that the system keeps from running holds nobody up unless it holds a piece. Whoever does the
    // last piece goes on alone through operations of one piece (or none), then calls the team to the next.
    void work_on(size_t op, Thread& thread);
    void go_on_from(size_t op, Thread& thread);

    template <typename T>
    void add(T op);

    std::shared_ptr<ThreadPool> pool_;
    const Kernels& kernels_;
    const int max_tokens_, max_samples_;
    std::vector<Value> values_;
    std::vector<std::unique_ptr<Op>> ops_;
    struct alignas(64) Progress {
        std::atomic<int64_t> claimed{0}, done{0};
    };
    std::unique_ptr<Progress[]> progress_;  // of each operation in the current step
    std::atomic<size_t> current_{0};        // the operation that the team is at
    std::unique_ptr<Buffer> arena_;
    std::shared_ptr<KvCache> cache_;
    int heads_ = 0, kv_heads_ = 0, head_dim_ = 0, logits_ = -1;
    Vector cos_, sin_;  // [positions, head_dim / 2]
    std::unique_ptr<Step> step_;
    std::vector<std::unique_ptr<Thread>> threads_;
};

}  // namespace rooftree
