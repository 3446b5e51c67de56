#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "cpu_features.h"
#include "program_step.h"

namespace rooftree {

namespace {
// Tokens that go through a run of weight tiles together: few, so that their inputs stay in the first-level cache, and
// all that a kernel's registers hold: a panel of quantised rows, or four times six float rows.
constexpr int kTokenBlock = 24;
// What of gate, and of up, is kept until both are there: pairs of tiles times tokens, well within the first-level cache.
constexpr int kGatedFloats = 1024;
static_assert(kGatedFloats >= kTokenBlock * kBlock);
constexpr int token_block(Format f) { return is_quantised(f) ? kPanelRows : kTokenBlock; }
}  // namespace

// ---- operations -----------------------------------------------------------------------------------------------

struct Program::Embed final : Op {
    Matrix table;
    int out;
    Embed(Matrix t, int o) : table(std::move(t)), out(o) {}
    int64_t pieces(const Program& p) const override { return p.step_->num_tokens; }
    void work(Program& p, int64_t i, Thread&) const override {
        const Step& step = *p.step_;
        const StepRequest& request = step.requests[step.request_of_token[i]];
        const int32_t token = step.tables.tokens[request.table_row * step.tables.tokens_stride + step.position[i]];
        table->unpack_row(token, p.floats(out, i));
    }
};

// The rows of a panel lie between each other: one thread writes them all.
struct Program::RmsNorm final : Op {
    int in;
    Forms out;
    Vector weight;
    float eps;
    RmsNorm(int i, Vector w, float e, Forms o) : in(i), out(o), weight(std::move(w)), eps(e) {}
    int64_t pieces(const Program& p) const override { return num_panels(p.rows(in)); }
    void work(Program& p, int64_t piece, Thread& thread) const override {
        const int64_t n = static_cast<int64_t>(weight.size());
        const Panel panel = nth_panel(static_cast<int>(piece), p.rows(in));
        float* rows = out.floats >= 0 ? p.floats(out.floats, panel.first_row) : thread.products.data();
        for (int lane = 0; lane < panel.width; lane++)
            p.kernels_.rms_norm(p.floats(in, panel.first_row + lane), weight.data(), eps, n, rows + lane * n);
        p.narrow(out, panel, rows, n, 0, n);
    }
};

// Floats to the other forms.
struct Program::Narrow final : Op {
    int in;
    int64_t k;
    Forms out;
    Narrow(int i, int64_t k_, Forms o) : in(i), k(k_), out(o) {}
    int64_t pieces(const Program& p) const override { return num_panels(p.rows(in)); }
    void work(Program& p, int64_t piece, Thread&) const override {
        const Panel panel = nth_panel(static_cast<int>(piece), p.rows(in));
        p.narrow(out, panel, p.floats(in, panel.first_row), k, 0, k);
    }
};

// Weights are handed out in runs of equal length, as many for each thread. For one block of tokens a run may be long: only
// from its second page or so on does the processor read ahead. While several blocks come by it must stay in the
// second-level cache.
struct Runs {
    int64_t units, streamed, kept;  // units, such as pairs of tiles, and into how many runs they are cut

    Runs(int64_t n, size_t unit_bytes, int threads) : units(n) {
        const int64_t bytes = units * static_cast<int64_t>(unit_bytes);
        const auto runs = [&](int64_t most_bytes, int64_t least_per_thread) {
            const int64_t per_thread = (bytes + threads * most_bytes - 1) / (threads * most_bytes);
            const int64_t count = threads * std::max(per_thread, least_per_thread);
            return units < 2 * count ? units : count;  // of one and two units they would be far from equal
        };
        streamed = runs(int64_t{1536} << 10, 3);
        kept = runs(int64_t{384} << 10, 6);
    }
    int64_t count(int rows, int block) const { return rows == 0 ? 0 : rows <= block ? streamed : kept; }
    int64_t begin(int64_t run, int64_t count) const { return units * run / count; }
};

struct Program::Linear final : Op {
    int in, out;
    bool accumulate;
    std::vector<Matrix> matrices;
    std::vector<Vector> biases;
    std::vector<int64_t> first_tile, first_column;  // of each matrix, and the ends
    Runs runs{1, 1, 1};  // of pairs of tiles
    int block = kPanelRows;
    Linear(int i, std::vector<Matrix> m, std::vector<Vector> b, int o, int64_t column, bool a, int threads)
        : in(i), out(o), accumulate(a), matrices(std::move(m)), biases(std::move(b)), first_tile{0}, first_column{column} {
        for (const Matrix& matrix : matrices) {
            first_tile.push_back(first_tile.back() + matrix->tiles());
            first_column.push_back(first_column.back() + matrix->n);
        }
        runs = Runs((first_tile.back() + 1) / 2, 2 * tile_bytes(matrices[0]->format, matrices[0]->k), threads);
        for (const Matrix& matrix : matrices) block = std::max(block, token_block(matrix->format));
    }
    int64_t pieces(const Program& p) const override { return runs.count(p.rows(in), block); }
    void work(Program& p, int64_t piece, Thread& thread) const override {
        const int rows = p.rows(in);
        const int64_t count = runs.count(rows, block);
        const int64_t run_begin = 2 * runs.begin(piece, count), run_end = 2 * runs.begin(piece + 1, count);
        for (int token = 0; token < rows; token += block) {
            const int m = std::min(block, rows - token);
            for (size_t which = 0; which < matrices.size(); which++) {
                const int64_t begin = std::max(run_begin, first_tile[which]) - first_tile[which];
                const int64_t end = std::min(run_end, first_tile[which + 1]) - first_tile[which];
                if (begin >= end) continue;
                for (int64_t tile = begin; tile < end; tile++) tile_work(p, which, tile, token, m, thread.products.data());
            }
        }
    }
    void tile_work(const Program& p, size_t which, int64_t tile, int token, int m, float* products) const {
        const PackedMatrix& w = *matrices[which];
        const Vector& bias = biases[which];
        const int64_t column = tile * kTileRows;
        const int valid = static_cast<int>(std::min<int64_t>(kTileRows, w.n - column));
        float* y = p.floats(out, token) + first_column[which] + column;
        const size_t stride = p.values_[out].row_bytes / sizeof(float);
        const auto product = [&](const TileOutput& output) {
            p.kernels_.tile_product(w.format, w.tile(tile), w.k, p.row(in, token), p.values_[in].row_bytes, m, output);
        };
        if (valid == kTileRows) return product({y, stride, bias.empty() ? nullptr : bias.data() + column, accumulate});
        product({products, kTileRows, nullptr, false});  // the matrix ends within the tile
        for (int t = 0; t < m; t++, y += stride)
            for (int r = 0; r < valid; r++) {
                const float value = products[t * kTileRows + r] + (bias.empty() ? 0.0f : bias[column + r]);
                y[r] = accumulate ? y[r] + value : value;
            }
    }
};

// Two tiles of gate and of up make 32 columns, one block of the quantised result.
struct Program::Gated final : Op {
    int gate_in, up_in;
    Forms out;
    Matrix gate, up;
    Vector gate_bias, up_bias;
    int64_t pairs;
    Runs runs{1, 1, 1};  // of pairs
    int block;
    Gated(int gi, int ui, Matrix g, Matrix u, Vector gb, Vector ub, Forms o, int threads)
        : gate_in(gi), up_in(ui), out(o), gate(std::move(g)), up(std::move(u)), gate_bias(std::move(gb)), up_bias(std::move(ub)) {
        pairs = (gate->tiles() + 1) / 2;
        for (Vector* bias : {&gate_bias, &up_bias})  // kernels read whole tiles
            if (!bias->empty()) bias->resize(gate->tiles() * kTileRows);
        runs = Runs(pairs, 4 * tile_bytes(gate->format, gate->k), threads);
        block = std::max(token_block(gate->format), token_block(up->format));
    }
    int64_t pieces(const Program& p) const override { return runs.count(p.rows(gate_in), block); }
    void work(Program& p, int64_t piece, Thread& thread) const override {
        const int rows = p.rows(gate_in);
        const int64_t count = runs.count(rows, block), begin = runs.begin(piece, count), end = runs.begin(piece + 1, count);
        for (int token = 0; token < rows; token += block) {
            const int m = std::min(block, rows - token);
            const int64_t group = rows <= block ? kGatedFloats / (m * kBlock) : 1;
            for (int64_t pair = begin; pair < end; pair += group)
                group_work(p, pair, std::min(end, pair + group), token, m, thread.products.data());
        }
    }
    // Pairs [begin, end): all of gate before all of up, for each lies in one stretch. Alternating, the processor would
    // start reading ahead anew with every tile.
    void group_work(Program& p, int64_t begin, int64_t end, int token, int m, float* gates) const {
        float* ups = gates + kGatedFloats;
        products(p, gate_in, *gate, gate_bias, begin, end, token, m, gates);
        products(p, up_in, *up, up_bias, begin, end, token, m, ups);
        for (int64_t pair = begin; pair < end; pair++, gates += m * kBlock, ups += m * kBlock) pair_work(p, pair, token, m, gates, ups);
    }
    // [pair][token][32].
    static void products(const Program& p, int in, const PackedMatrix& w, const Vector& bias, int64_t begin, int64_t end, int token, int m,
                         float* y) {
        for (int64_t tile = 2 * begin; tile < std::min(2 * end, w.tiles()); tile++) {
            const float* padded = bias.empty() ? nullptr : bias.data() + tile * kTileRows;
            float* columns = y + (tile / 2 - begin) * m * kBlock + tile % 2 * kTileRows;
            p.kernels_.tile_product(w.format, w.tile(tile), w.k, p.row(in, token), p.values_[in].row_bytes, m, {columns, kBlock, padded, false});
        }
    }
    void pair_work(Program& p, int64_t pair, int token, int m, float* gates, const float* ups) const {
        const int64_t column = pair * kBlock;
        const int64_t valid = std::min<int64_t>(kBlock, gate->n - column);
        for (int t = 0; t < m; t++) {
            float* y = gates + t * kBlock;
            p.kernels_.silu_mul(y, ups + t * kBlock, valid, y);
            if (out.floats >= 0) std::memcpy(p.floats(out.floats, token + t) + column, y, valid * sizeof(float));
        }
        for (int t = 0; t < m;) {
            const Panel panel = panel_of(token + t, p.rows(gate_in));
            p.narrow(out, panel, gates + t * kBlock, kBlock, column, valid);
            t += panel.width;
        }
    }
};

struct Program::RopeAndCache final : Op {
    int qkv, layer;
    Vector q_norm, k_norm;
    float eps;
    RopeAndCache(int v, int l, Vector q, Vector k, float e) : qkv(v), layer(l), q_norm(std::move(q)), k_norm(std::move(k)), eps(e) {}
    int64_t pieces(const Program& p) const override { return p.step_->num_tokens; }
    void work(Program& p, int64_t i, Thread&) const override {
        const Step& step = *p.step_;
        const int hd = p.head_dim_, position = step.position[i];
        const float* cos = p.cos_.data() + static_cast<size_t>(position) * (hd / 2);
        const float* sin = p.sin_.data() + static_cast<size_t>(position) * (hd / 2);
        float* q = p.floats(qkv, i);
        const float scale = 1.0f / std::sqrt(static_cast<float>(hd));
        for (int h = 0; h < p.heads_; h++, q += hd) {
            if (!q_norm.empty()) p.kernels_.rms_norm(q, q_norm.data(), eps, hd, q);
            p.kernels_.rope(q, cos, sin, hd, scale);
        }
        float* k = q;
        const float* v = q + p.kv_heads_ * hd;
        const KvCache& cache = *p.cache_;
        const StepRequest& request = step.requests[step.request_of_token[i]];
        const int32_t block = step.tables.blocks[request.table_row * step.tables.blocks_stride + position / cache.block_size()];
        const size_t offset = block * cache.block_stride();
        for (int h = 0; h < p.kv_heads_; h++, k += hd, v += hd) {
            if (!k_norm.empty()) p.kernels_.rms_norm(k, k_norm.data(), eps, hd, k);
            p.kernels_.rope(k, cos, sin, hd, 1.0f);
            p.kernels_.write_kv(cache.format(), k, v, hd, cache.block_size(), position % cache.block_size(),
                                cache.k(layer, h) + offset, cache.v(layer, h) + offset);
        }
    }
};

struct Program::Select final : Op {
    int in, out;
    Select(int i, int o) : in(i), out(o) {}
    int64_t pieces(const Program& p) const override { return p.step_->num_samples; }
    void work(Program& p, int64_t i, Thread&) const override {
        std::memcpy(p.row(out, i), p.row(in, p.step_->sampled_token[i]), p.values_[in].row_bytes);
    }
};

struct Program::Sample final : Op {
    int logits;
    explicit Sample(int l) : logits(l) {}
    int64_t pieces(const Program& p) const override { return p.step_->num_samples; }
    void work(Program& p, int64_t i, Thread& thread) const override {
        const Step& step = *p.step_;
        const int32_t row = step.requests[step.sampled_request[i]].table_row;
        thread.sampler->sample(p.floats(logits, i), step.sampling[i], *step.sampling_inputs,
                               step.tables.tokens + row * step.tables.tokens_stride, step.results + i);
    }
};

// ---- recording ------------------------------------------------------------------------------------------------

Program::Program(std::shared_ptr<ThreadPool> pool, const std::string& isa, int max_tokens, int max_samples)
    : pool_(std::move(pool)), kernels_(kernels_for(isa)), max_tokens_(max_tokens), max_samples_(max_samples),
      step_(std::make_unique<Step>()) {
    for (int i = 0; i < pool_->size(); i++) threads_.push_back(std::make_unique<Thread>());
}

Program::~Program() = default;

int Program::add_value(size_t offset, size_t row_bytes, bool per_sample) {
    values_.push_back({offset, row_bytes, per_sample});
    return static_cast<int>(values_.size()) - 1;
}

void Program::check_value(int value, size_t row_bytes) const {
    if (value < 0 || value >= static_cast<int>(values_.size())) throw std::invalid_argument("no such value");
    if (values_[value].row_bytes != row_bytes) throw std::invalid_argument("a value has the wrong width");
}

void Program::check_forms(Forms forms, int64_t k) const {
    if (forms.floats >= 0) check_value(forms.floats, k * sizeof(float));
    if (forms.quantised >= 0) check_value(forms.quantised, quantised_row_bytes(k));
    if (forms.rounded >= 0) check_value(forms.rounded, rounded_row_bytes(k));
    if (forms.rounded >= 0 && !kernels_.round_panel) throw std::invalid_argument("these kernels take no rounded inputs");
}

// The input of a product, in the form that the weights meet.
void Program::check_input(int value, const PackedMatrix& weights) const {
    const bool rounded = weights.format == Format::BF16 && kernels_.round_panel;
    check_value(value, is_quantised(weights.format) ? quantised_row_bytes(weights.k)
                       : rounded                    ? rounded_row_bytes(weights.k)
                                                    : weights.k * sizeof(float));
}

static void check_bias(const std::vector<float>& bias, int64_t n) {
    if (!bias.empty() && static_cast<int64_t>(bias.size()) != n) throw std::invalid_argument("a bias has the wrong length");
}

void Program::add_embed(Matrix table, int out) {
    check_value(out, table->k * sizeof(float));
    add(Embed(std::move(table), out));
}

void Program::add_rms_norm(int in, Vector weight, float eps, Forms out) {
    const size_t n = weight.size();
    check_value(in, n * sizeof(float));
    check_forms(out, n);
    for (auto& thread : threads_) thread->products.resize(std::max(thread->products.size(), kPanelRows * n));
    add(RmsNorm(in, std::move(weight), eps, out));
}

void Program::add_narrow(int in, int64_t k, int out_quantised, int out_rounded) {
    const Forms out{-1, out_quantised, out_rounded};
    check_value(in, k * sizeof(float));
    check_forms(out, k);
    add(Narrow(in, k, out));
}

void Program::add_linear(int in, std::vector<Matrix> matrices, std::vector<Vector> biases, int out, int64_t column, bool accumulate) {
    int64_t columns = column;
    if (biases.size() != matrices.size()) throw std::invalid_argument("one bias (or none) per matrix");
    for (size_t i = 0; i < matrices.size(); i++) {
        check_input(in, *matrices[i]);
        check_bias(biases[i], matrices[i]->n);
        columns += matrices[i]->n;
    }
    if (column < 0 || values_.at(out).row_bytes < columns * sizeof(float)) throw std::invalid_argument("outputs do not fit the value");
    add(Linear(in, std::move(matrices), std::move(biases), out, column, accumulate, pool_->size()));
}

void Program::add_gated(int gate_in, int up_in, Matrix gate, Matrix up, Vector gate_bias, Vector up_bias, Forms out) {
    check_input(gate_in, *gate);
    check_input(up_in, *up);
    if (gate->n != up->n) throw std::invalid_argument("gate and up differ in width");
    if (gate->format == up->format && gate_in != up_in) throw std::invalid_argument("gate and up of one format take one input");
    check_bias(gate_bias, gate->n);
    check_bias(up_bias, up->n);
    check_forms(out, gate->n);
    add(Gated(gate_in, up_in, std::move(gate), std::move(up), std::move(gate_bias), std::move(up_bias), out, pool_->size()));
}

void Program::set_heads(int heads, int kv_heads, int head_dim, Vector cos, Vector sin) {
    if (kv_heads < 1 || heads % kv_heads != 0) throw std::invalid_argument("query heads must be a multiple of KV heads");
    if (heads / kv_heads > kMaxAttentionRows) throw std::invalid_argument("more than 48 query heads per KV head");
    heads_ = heads;
    kv_heads_ = kv_heads;
    head_dim_ = head_dim;
    cos_ = std::move(cos);
    sin_ = std::move(sin);
}

void Program::add_rope_and_cache(int qkv, int layer, Vector q_norm, Vector k_norm, float eps) {
    check_value(qkv, static_cast<size_t>(heads_ + 2 * kv_heads_) * head_dim_ * sizeof(float));
    add(RopeAndCache(qkv, layer, std::move(q_norm), std::move(k_norm), eps));
}

void Program::add_select(int in, int out) {
    check_value(out, values_.at(in).row_bytes);
    add(Select(in, out));
}

void Program::add_sample(int logits, int64_t vocab) {
    check_value(logits, vocab * sizeof(float));
    logits_ = logits;
    for (auto& thread : threads_) thread->sampler = std::make_unique<Sampler>(kernels_, vocab);
    add(Sample(logits));
}

void Program::finish(size_t arena_bytes) {
    for (const Value& value : values_) {
        const size_t rows = value.per_sample ? max_samples_ : max_tokens_;
        if (value.offset + rows * value.row_bytes > arena_bytes) throw std::invalid_argument("a value does not fit the arena");
    }
    arena_ = std::make_unique<Buffer>(arena_bytes);
    progress_ = std::make_unique<Progress[]>(ops_.size());
    for (auto& thread : threads_) {
        thread->products.resize(std::max<size_t>(thread->products.size(), 2 * kGatedFloats));
        thread->attention.resize(attention_scratch_floats(head_dim_));
        thread->state.resize(static_cast<size_t>(kMaxAttentionRows) * (head_dim_ + 2));
    }
}

// ---- replay ---------------------------------------------------------------------------------------------------

void Program::narrow(Forms out, Panel panel, const float* x, size_t stride, int64_t first, int64_t count) {
    if (out.quantised >= 0)
        for (int lane = 0; lane < panel.width; lane++)
            kernels_.quantise(x + lane * stride, first / kBlock, count / kBlock, {row(out.quantised, panel.first_row), panel.width, lane});
    if (out.rounded >= 0)
        kernels_.round_panel(x, stride, panel.width, count, row(out.rounded, panel.first_row) + first * panel.width * sizeof(uint16_t));
}

int Program::rows(int value) const { return values_[value].per_sample ? step_->num_samples : step_->num_tokens; }

void Program::prepare(StepRequest* requests, int num_requests, const StepTables& tables) {
    Step& step = *step_;
    step.requests = requests;
    step.num_requests = num_requests;
    step.tables = tables;
    step.request_of_token.clear();
    step.position.clear();
    step.sampled_token.clear();
    step.sampled_request.clear();
    int tokens = 0;
    for (int i = 0; i < num_requests; i++) {
        requests[i].first_token = tokens;
        tokens += requests[i].num_tokens;
        if (tokens > max_tokens_) throw std::invalid_argument("more tokens than the program was made for");
        for (int t = 0; t < requests[i].num_tokens; t++) {
            step.request_of_token.push_back(i);
            step.position.push_back(requests[i].start + t);
        }
        if (!requests[i].samples) continue;
        step.sampled_token.push_back(tokens - 1);
        step.sampled_request.push_back(i);
    }
    step.num_tokens = tokens;
    step.num_samples = static_cast<int>(step.sampled_token.size());
    if (step.num_samples > max_samples_) throw std::invalid_argument("more sampled requests than the program was made for");
}

void Program::run(StepRequest* requests, int num_requests, const StepTables& tables, const SamplingRow* sampling,
                  const SamplingInputs& sampling_inputs, SampleResult* results) {
    if (!arena_ || !cache_) throw std::invalid_argument("the program has no memory yet");
    prepare(requests, num_requests, tables);
    prepare_attention();
    step_->sampling = sampling;
    step_->sampling_inputs = &sampling_inputs;
    step_->results = results;
    step_->pieces.clear();
    for (size_t i = 0; i < ops_.size(); i++) {
        step_->pieces.push_back(ops_[i]->pieces(*this));
        progress_[i].claimed.store(0, std::memory_order_relaxed);
        progress_[i].done.store(0, std::memory_order_relaxed);
    }
    go_on_from(0, *threads_[0]);
    pool_->run([this](int index) {
        size_t i;
        while ((i = current_.load(std::memory_order_acquire)) < ops_.size()) {
            work_on(i, *threads_[index]);
            Spinner spinner;
            while (current_.load(std::memory_order_acquire) == i) spinner.wait();
        }
    });
}

void Program::work_on(size_t i, Thread& thread) {
    const int64_t pieces = step_->pieces[i];
    for (int64_t piece; (piece = progress_[i].claimed.fetch_add(1, std::memory_order_relaxed)) < pieces;) {
        ops_[i]->work(*this, piece, thread);
        if (progress_[i].done.fetch_add(1, std::memory_order_acq_rel) == pieces - 1) go_on_from(i + 1, thread);
    }
}

void Program::go_on_from(size_t i, Thread& thread) {
    for (; i < ops_.size() && step_->pieces[i] <= 1; i++)
        if (step_->pieces[i] == 1) ops_[i]->work(*this, 0, thread);
    current_.store(i, std::memory_order_release);
}

}  // namespace rooftree
