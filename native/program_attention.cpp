// Attention within a program: its operations, and how a step's share of it is dealt out.
#include <algorithm>
#include <limits>

#include "program_step.h"

namespace rooftree {

struct Program::Attention final : Op {
    int qkv, layer, out;
    size_t plan;
    Attention(int v, int l, size_t w, int o) : qkv(v), layer(l), out(o), plan(w) {}
    int64_t pieces(const Program& p) const override { return static_cast<int64_t>(p.step_->attention[plan].items.size()); }
    void work(Program& p, int64_t i, Thread& thread) const override {
        Step& step = *p.step_;
        const AttentionItem& item = step.attention[plan].items[i];
        const StepRequest& request = step.requests[item.request];
        const KvCache& cache = *p.cache_;
        const int group = p.heads_ / p.kv_heads_, hd = p.head_dim_, rows = (item.end - item.begin) * group;
        int32_t last[kMaxAttentionRows];
        for (int t = item.begin, r = 0; t < item.end; t++)
            for (int g = 0; g < group; g++) last[r++] = request.start + t;
        const float* q = p.floats(qkv, request.first_token + item.begin) + item.kv_head * group * hd;
        const size_t q_stride = p.values_[qkv].row_bytes / sizeof(float);
        const bool split = item.partial >= 0;
        const size_t stride = p.attention_state_floats(rows);
        float* m = split ? step.partials.data() + item.partial : thread.state.data();
        float *l = m + rows, *acc = l + rows;
        for (int part = 0; part < (split ? item.end_partition - item.first_partition : 1); part++) {
            std::fill_n(m + part * stride, rows, -std::numeric_limits<float>::infinity());
            std::fill_n(l + part * stride, stride - rows, 0.0f);
        }
        p.kernels_.attention(cache.format(), {rows, hd, q, group, q_stride, last, step.attention[plan].window,
                                              step.tables.blocks + request.table_row * step.tables.blocks_stride, cache.block_size(),
                                              cache.k(layer, item.kv_head), cache.v(layer, item.kv_head), cache.block_stride(),
                                              item.first_partition, item.end_partition, item.next_partition, thread.attention.data(),
                                              split ? stride : 0, m, l, acc});
        if (split) return;
        for (int t = item.begin, r = 0; t < item.end; t++)
            for (int g = 0; g < group; g++, r++)
                write_output(p, request.first_token + t, item.kv_head * group + g, acc + r * hd, l[r]);
    }
    void write_output(Program& p, int token, int head, const float* acc, float l) const {
        float* y = p.floats(out, token) + head * p.head_dim_;
        const float inverse = 1.0f / l;
        for (int d = 0; d < p.head_dim_; d++) y[d] = acc[d] * inverse;
    }
};

// Puts a split context's partitions together, in order: the same sums as one thread walking through them.
struct Program::MergeAttention final : Op {
    const Attention& attention;
    explicit MergeAttention(const Attention& a) : attention(a) {}
    int64_t pieces(const Program& p) const override {
        return static_cast<int64_t>(p.step_->attention[attention.plan].splits.size()) * p.kv_heads_;
    }
    void work(Program& p, int64_t i, Thread& thread) const override {
        Step& step = *p.step_;
        const int group = p.heads_ / p.kv_heads_, hd = p.head_dim_;
        const int kv_head = static_cast<int>(i % p.kv_heads_);
        const SplitRequest& split = step.attention[attention.plan].splits[i / p.kv_heads_];
        const size_t stride = p.attention_state_floats(group);
        const float* states = step.partials.data() + split.partial + kv_head * split.partitions * stride;
        float* total = thread.state.data();
        for (int g = 0; g < group; g++) {
            float m = -std::numeric_limits<float>::infinity(), l = 0.0f;
            std::fill_n(total, hd, 0.0f);
            for (int part = 0; part < split.partitions; part++) {
                const float* state = states + part * stride;
                if (state[g] == -std::numeric_limits<float>::infinity()) continue;
                p.kernels_.merge_partition(state[g], state[group + g], state + 2 * group + g * hd, hd, &m, &l, total);
            }
            attention.write_output(p, step.requests[split.request].first_token, kv_head * group + g, total, l);
        }
    }
};

void Program::add_attention(int qkv, int layer, int window, int out) {
    check_value(out, static_cast<size_t>(heads_) * head_dim_ * sizeof(float));
    size_t plan = 0;
    while (plan < step_->attention.size() && step_->attention[plan].window != window) plan++;
    if (plan == step_->attention.size()) step_->attention.push_back({window, {}, {}});
    add(Attention(qkv, layer, plan, out));
    add(MergeAttention(static_cast<const Attention&>(*ops_.back())));
}

// A single query token over a long context is split by partitions, so that all threads can help; query tokens of a
// prompt are cut into tiles that share one pass over K and V. The later tiles of a prompt see most: they go first.
void Program::prepare_attention() {
    Step& step = *step_;
    int64_t floats = 0;
    for (AttentionPlan& plan : step.attention) {
        plan.items.clear();
        plan.splits.clear();
        const int run = partitions_per_item(plan.window);
        int64_t partial = 0;
        for (int i = 0; i < step.num_requests; i++) {
            const StepRequest& request = step.requests[i];
            if (request.num_tokens == 1 && partitions_seen(request, 0, 1, plan.window).count() > run)
                partial += plan_split(plan, i, run, partial);
            else
                plan_tiles(plan, i);
        }
        floats = std::max(floats, partial);
    }
    if (static_cast<int64_t>(step.partials.size()) < floats) step.partials.resize(floats);
}

Program::Partitions Program::partitions_seen(const StepRequest& request, int begin, int end, int window) {
    const int first = window ? std::max(0, request.start + begin + 1 - window) : 0;
    return {first / kPartition, (request.start + end - 1) / kPartition + 1};
}

// Runs of partitions are as long as they can be while the lone tokens' work is shared evenly: so few contexts are split,
// and the states to be merged stay few however many requests there are.
int Program::partitions_per_item(int window) const {
    constexpr int kItemsPerThread = 8;
    int64_t partitions = 0;
    for (int i = 0; i < step_->num_requests; i++)
        if (step_->requests[i].num_tokens == 1) partitions += partitions_seen(step_->requests[i], 0, 1, window).count();
    return static_cast<int>(std::max<int64_t>(partitions * kv_heads_ / (pool_->size() * kItemsPerThread), 1));
}

// Returns the floats that its states take.
int64_t Program::plan_split(AttentionPlan& plan, int index, int run, int64_t partial) {
    const Partitions seen = partitions_seen(step_->requests[index], 0, 1, plan.window);
    const int64_t stride = attention_state_floats(heads_ / kv_heads_);
    plan.splits.push_back({index, seen.count(), partial});
    for (int h = 0; h < kv_heads_; h++)
        for (int part = seen.first; part < seen.end; part += run) {
            const int end = std::min(part + run, seen.end);
            const int next = end + (pool_->size() - 1) * run;  // the others take what lies between
            const int64_t state = partial + (h * seen.count() + part - seen.first) * stride;
            plan.items.push_back({index, h, 0, 1, part, end, next, state});
        }
    return kv_heads_ * seen.count() * stride;
}

void Program::plan_tiles(AttentionPlan& plan, int index) {
    const StepRequest& request = step_->requests[index];
    const int tile = std::max(1, kMaxAttentionRows / (heads_ / kv_heads_));
    for (int begin = (request.num_tokens - 1) / tile * tile; begin >= 0; begin -= tile) {
        const int end = std::min(begin + tile, request.num_tokens);
        const Partitions seen = partitions_seen(request, begin, end, plan.window);
        for (int h = 0; h < kv_heads_; h++) plan.items.push_back({index, h, begin, end, seen.first, seen.end, seen.first, -1});
    }
}

}  // namespace rooftree
