// Attention over a paged KV cache, in terms of `Simd`, the cache's element types and their `Products`. Included once per
// instruction set, after kv_impl.h, inside no namespace.
//
// A context is cut into partitions of kPartition positions at fixed places. Of each, the scores of a row are
// normalised together and its weighted sum of V is one chain of multiply-adds in order of positions; partitions are
// merged in order. How many rows, groups or channels a loop takes at once therefore changes no bit of a result. Where
// positions lie in pairs, the chain's steps are pairs, an even position and the odd one after it.
#pragma once

#include <limits>
#include <type_traits>

#include "kernels.h"

namespace rooftree::ROOFTREE_ISA {

constexpr int kPartitionGroups = kPartition / kKvGroup;

// Up to so many rows read K and V as they come, and ask for what comes next as they go. More rows share what is near.
constexpr int kDirectRows = N == 16 ? 8 : 4;

// Which positions the rows see: row r [from[r], last[r]], all together [first, end), each of them [all_from, all_end).
struct Sight {
    int from[kMaxAttentionRows];
    int first = std::numeric_limits<int>::max(), end = 0, all_from = 0, all_end = first;
    explicit Sight(const AttentionArgs& a) {
        for (int r = 0; r < a.rows; r++) {
            from[r] = a.window && a.last[r] >= a.window ? a.last[r] - a.window + 1 : 0;
            if (from[r] < first) first = from[r];
            if (from[r] > all_from) all_from = from[r];
            if (a.last[r] + 1 > end) end = a.last[r] + 1;
            if (a.last[r] + 1 < all_end) all_end = a.last[r] + 1;
        }
    }
};

// Positions [begin, end) of a partition that some row sees; `begin` starts a group.
struct Span {
    int begin, end;
    Span(const Sight& sight, int partition) {
        const int base = partition * kPartition;
        begin = sight.first > base ? sight.first / kKvGroup * kKvGroup : base;
        end = sight.end < base + kPartition ? sight.end : base + kPartition;
    }
    int groups() const { return (end - begin + kKvGroup - 1) / kKvGroup; }
};

template <typename Kv>
static inline const Kv* block_of(const AttentionArgs& a, const uint8_t* base, int position) {
    return reinterpret_cast<const Kv*>(base + a.blocks[position / a.block_size] * a.block_stride);
}

template <typename Kv>
static inline const float* scales_of(const AttentionArgs& a, const Kv* block, int position) {
    return reinterpret_cast<const float*>(block + a.head_dim * a.block_size) + position % a.block_size;
}

// Memory that will be read after the present groups, one stretch for each of them: whatever share of a group a loop
// has read, it asks for the same share of the stretch, into the second-level cache.
struct Ahead {
    const uint8_t* stretch[kPartitionGroups];
    void ask(int group, size_t offset) const { __builtin_prefetch(stretch[group] + offset, 0, 2); }

    // Groups of K (or V) from `position` on, as far as the context reaches. A block's memory is dealt out evenly.
    template <typename Kv>
    Ahead(const AttentionArgs& a, const uint8_t* base, int position, int groups, int end, Kv) {
        for (int g = 0; g < groups; g++, position += kKvGroup) {
            if (position >= end) {
                stretch[g] = g > 0 ? stretch[g - 1] : base;
                continue;
            }
            const Kv* block = block_of<Kv>(a, base, position);
            stretch[g] = reinterpret_cast<const uint8_t*>(block + position % a.block_size * a.head_dim);
            if constexpr (Kv::scaled) __builtin_prefetch(scales_of(a, block, position), 0, 2);
        }
    }
};

// What many rows share is near already.
struct NothingAhead {
    void ask(int, size_t) const {}
};

// Calls body(R, r) for blocks of R rows from row r on, the largest first.
template <int R, int... Smaller, typename Body>
static inline void in_row_blocks(int rows, int r, const Body& body) {
    for (; r + R <= rows; r += R) body(std::integral_constant<int, R>{}, r);
    if constexpr (sizeof...(Smaller) > 0) in_row_blocks<Smaller...>(rows, r, body);
}

template <typename Kv>
using Factor = typename Products<Kv>::Factor;

// scores[r][16g + 0..15] = q[r] . K_g[:, 0..15] for R rows and G groups from `first` on; K_g: [head_dim, stride].
template <int R, int G, typename Kv, typename Next>
static inline void score_groups(const Factor<Kv>* q, int head_dim, const Kv* const* k, int stride, const Next& next, int first,
                                float* scores) {
    using P = Products<Kv>;
    constexpr int V = kKvGroup / N;
    constexpr size_t kStep = kKvGroup * sizeof(Kv);
    F sum[R][G * V];
    ROOFTREE_UNROLL
    for (int r = 0; r < R; r++)
        ROOFTREE_UNROLL
        for (int j = 0; j < G * V; j++) sum[r][j] = Simd::zero();
    for (int d = 0; d < head_dim; d += Kv::depth) {
        typename P::Vector key[G * V];
        ROOFTREE_UNROLL
        for (int g = 0; g < G; g++) {
            if (d * kStep % 64 == 0) next.ask(first + g, d * kStep);
            ROOFTREE_UNROLL
            for (int j = 0; j < V; j++) key[g * V + j] = P::load(k[first + g] + d * stride + j * N * Kv::depth);
        }
        ROOFTREE_UNROLL
        for (int r = 0; r < R; r++) {
            const auto query = P::spread(q + r * head_dim + d);
            ROOFTREE_UNROLL
            for (int j = 0; j < G * V; j++) sum[r][j] = P::add(query, key[j], sum[r][j]);
        }
    }
    ROOFTREE_UNROLL
    for (int r = 0; r < R; r++)
        ROOFTREE_UNROLL
        for (int j = 0; j < G * V; j++) Simd::store(scores + r * kPartition + first * kKvGroup + j * N, sum[r][j]);
}

// All of `groups` groups for R rows: as many at once as the registers hold sums.
template <int R, typename Kv, typename Next>
static inline void score_row_block(const Factor<Kv>* q, int head_dim, const Kv* const* k, int groups, int stride, const Next& next,
                                   float* scores) {
    constexpr int G = N == 16 ? (R > 6 ? 2 : 4) : R > 3 ? 1 : 2;
    int g = 0;
    for (; g + G <= groups; g += G) score_groups<R, G>(q, head_dim, k, stride, next, g, scores);
    for (; g < groups; g++) score_groups<R, 1>(q, head_dim, k, stride, next, g, scores);
}

// acc[r] += sum_t p[r][t] * V[t] for R rows and D vectors of channels from `channel` on, begin <= t < end (whole steps).
// V: [16, head_dim] for each group; acc: [R, stride] from that channel on.
template <int R, int D, typename Kv, typename Next>
static inline void weigh_channels(const Factor<Kv>* p, int begin, int end, const Kv* const* v, int head_dim, int channel,
                                  const Next& next, float* acc, int stride) {
    using P = Products<Kv>;
    F sum[R][D];
    ROOFTREE_UNROLL
    for (int r = 0; r < R; r++)
        ROOFTREE_UNROLL
        for (int j = 0; j < D; j++) sum[r][j] = Simd::load(acc + r * stride + j * N);
    for (int t = begin; t < end;) {
        const int group = t / kKvGroup;
        const int stop = (group + 1) * kKvGroup < end ? (group + 1) * kKvGroup : end;
        const Kv* row = v[group] + t % kKvGroup * head_dim + channel * Kv::depth;
        for (; t < stop; t += Kv::depth, row += head_dim * Kv::depth) {
            ROOFTREE_UNROLL
            for (size_t line = 0; line < D * N * Kv::depth * sizeof(Kv); line += 64)
                next.ask(group, (t % kKvGroup * head_dim + channel * Kv::depth) * sizeof(Kv) + line);
            typename P::Vector value[D];
            ROOFTREE_UNROLL
            for (int j = 0; j < D; j++) value[j] = P::load(row + j * N * Kv::depth);
            ROOFTREE_UNROLL
            for (int r = 0; r < R; r++) {
                const auto weight = P::spread(p + r * kPartition + t);
                ROOFTREE_UNROLL
                for (int j = 0; j < D; j++) sum[r][j] = P::add(weight, value[j], sum[r][j]);
            }
        }
    }
    ROOFTREE_UNROLL
    for (int r = 0; r < R; r++)
        ROOFTREE_UNROLL
        for (int j = 0; j < D; j++) Simd::store(acc + r * stride + j * N, sum[r][j]);
}

template <int R, typename Kv, typename Next>
static inline void weigh_row_block(const Factor<Kv>* p, int begin, int end, const Kv* const* v, int head_dim, const Next& next,
                                   float* acc) {
    constexpr int D = N == 16 || R < 3 ? 4 : R == 3 ? 3 : 2;  // as many sums as the registers hold
    int c = 0;
    for (; c + D * N <= head_dim; c += D * N) weigh_channels<R, D>(p, begin, end, v, head_dim, c, next, acc + c, head_dim);
    for (; c + N <= head_dim; c += N) weigh_channels<R, 1>(p, begin, end, v, head_dim, c, next, acc + c, head_dim);
    if (c == head_dim) return;
    float rest[R][N];  // head_dim is a multiple of 8, vectors may be 16 wide: what they reach of others is dropped
    for (int r = 0; r < R; r++)
        for (int e = 0; e < N; e++) rest[r][e] = c + e < head_dim ? acc[r * head_dim + c + e] : 0.0f;
    weigh_channels<R, 1>(p, begin, end, v, head_dim, c, next, rest[0], N);
    for (int r = 0; r < R; r++)
        for (int e = c; e < head_dim; e++) acc[r * head_dim + e] = rest[r][e - c];
}

// K and V of some groups for all rows of a tile: as they come, or what many rows share.
template <typename Kv, typename Next>
struct Tile {
    const AttentionArgs& a;
    const Sight& sight;
    const Next& next;
    const Kv* const* groups;
    static constexpr bool kShared = std::is_same_v<Next, NothingAhead>;

    void score(const Factor<Kv>* q, int count, int stride, float* scores) const {
        const auto block = [&](auto R, int r) {
            score_row_block<R()>(q + r * a.head_dim, a.head_dim, groups, count, stride, next, scores + r * kPartition);
        };
        if constexpr (!kShared) in_row_blocks<4, 3, 2, 1>(a.rows, 0, block);
        else if constexpr (N == 16) in_row_blocks<12, 6, 4, 3, 2, 1>(a.rows, 0, block);
        else in_row_blocks<6, 4, 3, 2, 1>(a.rows, 0, block);
    }

    // Positions [base, base + count), whose weights are p[row][0..count).
    void weigh(int base, int count, const Factor<Kv>* p, float* acc) const {
        const int full = within(step_end(sight.all_from - base), 0, count);
        const int ragged = within(step_begin(sight.all_end - base), full, count);
        weigh_each(base, 0, full, p, acc);
        const auto block = [&](auto R, int r) {
            weigh_row_block<R()>(p + r * kPartition, full, ragged, groups, a.head_dim, next, acc + r * a.head_dim);
        };
        if constexpr (kShared) in_row_blocks<6, 4, 3, 2, 1>(a.rows, 0, block);
        else in_row_blocks<4, 3, 2, 1>(a.rows, 0, block);
        weigh_each(base, ragged, count, p, acc);
    }

   private:
    static int within(int x, int low, int high) { return x < low ? low : x > high ? high : x; }
    static int step_begin(int t) { return t / Kv::depth * Kv::depth; }
    static int step_end(int t) { return (t + Kv::depth - 1) / Kv::depth * Kv::depth; }

    // Where some rows see only a part each takes what it sees. (A weight of 0 is not enough: times NaN it is NaN, and
    // what one position holds must not reach a row that does not see it.)
    void weigh_each(int base, int begin, int end, const Factor<Kv>* p, float* acc) const {
        for (int r = 0; r < a.rows && begin < end; r++) {
            const int from = within(sight.from[r] - base, begin, end), to = within(a.last[r] + 1 - base, from, end);
            if (from < to) weigh_row(from, to, p + r * kPartition, acc + r * a.head_dim);
        }
    }

    void weigh_row(int from, int to, const Factor<Kv>* p, float* acc) const {
        const int begin = step_end(from), end = step_begin(to);
        if (from < begin) weigh_half_pair(from, p, acc);
        if (begin < end) weigh_row_block<1>(p, begin, end, groups, a.head_dim, next, acc);
        if (end < to && from <= end) weigh_half_pair(end, p, acc);
    }

    // One position of a pair, with zeros in the other's place.
    void weigh_half_pair(int t, const Factor<Kv>* p, float* acc) const {
        if constexpr (Kv::depth == 2) {
            const bool odd = t % 2;
            const Kv* pair = groups[t / kKvGroup] + (t - odd) % kKvGroup * a.head_dim;
            Kv seen[2 * (kMaxHeadDim + N)];
            for (int d = 0; d < a.head_dim; d++) {
                seen[2 * d] = odd ? Kv{} : pair[2 * d];
                seen[2 * d + 1] = odd ? pair[2 * d + 1] : Kv{};
            }
            const Kv* only = seen;
            weigh_row_block<1>(p + t - odd, 0, 2, &only, a.head_dim, NothingAhead{}, acc);
        }
    }
};

static inline void ask_for(const uint8_t* ahead, size_t bytes) {
    for (size_t line = 0; line < bytes; line += 64) __builtin_prefetch(ahead + line, 0, 2);
}

// Copies [rows, columns] of the cache as floats; of pairs whole ones.
template <typename Kv>
static inline void widen(const Kv* in, int rows, int columns, int stride, const uint8_t* ahead, FloatKv* out) {
    for (int i = 0; i < rows; i += Kv::depth) {
        int j = 0;
        for (; j + N <= columns; j += N)
            Products<Kv>::store_rows(Products<Kv>::load(in + place<Kv>(i, j, stride)), columns, &out[i * columns + j].bits);
        if (columns % N == 0) continue;
        for (; j < columns; j++)
            for (int u = 0; u < Kv::depth; u++)
                out[(i + u) * columns + j].bits = Kv::value(in[place<Kv>(i + u, j, stride)]);
    }
    ask_for(ahead, rows * columns * sizeof(Kv));
}

// Multiplies 16 columns of `rows` rows by the positions' scales.
static inline void scale_group(int rows, const float* scales, float* columns) {
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < kKvGroup; j += N)
            Simd::store(columns + r * kPartition + j, Simd::load(columns + r * kPartition + j) * Simd::load(scales + j));
}

// scores[row][t] = q[row] . K[span.begin + t], whether the row sees the position or not.
template <typename Kv>
static void score_partition(const AttentionArgs& a, const Factor<Kv>* q, const Sight& sight, const Span& span, FloatKv* copy,
                            float* scores) {
    const int groups = span.groups();
    const Kv* keys[kPartitionGroups];
    const float* scales[kPartitionGroups];
    for (int g = 0; g < groups; g++) {
        const int position = span.begin + g * kKvGroup;
        const Kv* block = block_of<Kv>(a, a.k, position);
        keys[g] = block + position % a.block_size * Kv::depth;
        scales[g] = scales_of(a, block, position);
    }
    const Ahead next(a, a.v, span.begin, groups, span.end, Kv{});
    if (a.rows <= kDirectRows) {
        Tile<Kv, Ahead>{a, sight, next, keys}.score(q, groups, a.block_size, scores);
    } else if constexpr (!Products<Kv>::widened) {
        Tile<Kv, NothingAhead>{a, sight, {}, keys}.score(q, groups, a.block_size, scores);
        for (int g = 0; g < groups; g++) ask_for(next.stretch[g], a.head_dim * kKvGroup * sizeof(Kv));
    } else {
        const FloatKv* wide[kWideGroups];
        for (int g = 0; g < groups; g += kWideGroups) {
            const int count = groups - g < kWideGroups ? groups - g : kWideGroups;
            for (int i = 0; i < count; i++) {
                FloatKv* out = copy + i * kKvGroup * a.head_dim;
                widen(keys[g + i], a.head_dim, kKvGroup, a.block_size, next.stretch[g + i], out);
                wide[i] = out;
            }
            Tile<FloatKv, NothingAhead>{a, sight, {}, wide}.score(q, count, kKvGroup, scores + g * kKvGroup);
        }
    }
    if constexpr (Kv::scaled)
        for (int g = 0; g < groups; g++) scale_group(a.rows, scales[g], scores + g * kKvGroup);
}

// acc[row] += sum_t weights[row][t] * V[span.begin + t] over the positions that the row sees. Next comes the K of
// partition `after`.
template <typename Kv>
static void weigh_partition(const AttentionArgs& a, const Sight& sight, const Span& span, int after, FloatKv* copy,
                            Factor<Kv>* weights, float* acc) {
    const int groups = span.groups();
    const Kv* values[kPartitionGroups];
    for (int g = 0; g < groups; g++) {
        const int position = span.begin + g * kKvGroup;
        const Kv* block = block_of<Kv>(a, a.v, position);
        values[g] = block + position % a.block_size * a.head_dim;
        if constexpr (Kv::scaled) scale_group(a.rows, scales_of(a, block, position), weights + g * kKvGroup);
    }
    const Ahead next(a, a.k, after * kPartition, groups, sight.end, Kv{});
    const int tokens = span.end - span.begin;  // beyond lies another's data
    if (a.rows <= kDirectRows) return Tile<Kv, Ahead>{a, sight, next, values}.weigh(span.begin, tokens, weights, acc);
    if constexpr (!Products<Kv>::widened) {
        Tile<Kv, NothingAhead>{a, sight, {}, values}.weigh(span.begin, tokens, weights, acc);
        for (int g = 0; g < groups; g++) ask_for(next.stretch[g], a.head_dim * kKvGroup * sizeof(Kv));
    } else {
        const FloatKv* wide[kWideGroups];
        for (int g = 0; g < groups; g += kWideGroups) {
            const int first = g * kKvGroup;
            const int count = tokens - first < kWideGroups * kKvGroup ? tokens - first : kWideGroups * kKvGroup;
            for (int i = 0; i * kKvGroup < count; i++) {
                const int rows = count - i * kKvGroup < kKvGroup ? count - i * kKvGroup : kKvGroup;
                FloatKv* out = copy + i * kKvGroup * a.head_dim;
                widen(values[g + i], rows, a.head_dim, a.head_dim, next.stretch[g + i], out);
                wide[i] = out;
            }
            Tile<FloatKv, NothingAhead>{a, sight, {}, wide}.weigh(span.begin + first, count, weights + first, acc);
        }
    }
}

static void merge_partition(float m, float l, const float* acc, int head_dim, float* m_out, float* l_out, float* acc_out) {
    const float top = *m_out > m ? *m_out : m;
    const float old_weight = sexp(*m_out - top), new_weight = sexp(m - top);
    *m_out = top;
    *l_out = *l_out * old_weight + l * new_weight;
    const F a = Simd::set1(old_weight), b = Simd::set1(new_weight);
    int d = 0;
    for (; d + N <= head_dim; d += N)
        Simd::store(acc_out + d, Simd::load(acc_out + d) * a + Simd::load(acc + d) * b);
    for (; d < head_dim; d++) acc_out[d] = acc_out[d] * old_weight + acc[d] * new_weight;
}

// Masks and exponentiates one row's scores of a partition to weights, and sums them. Returns the maximum (-inf, and a
// sum of 0: nothing visible). The weights may begin where the scores do, or before.
template <typename Kv>
static inline float softmax_row(float* scores, int count, int visible_begin, int visible_end, Factor<Kv>* weights, float* sum_out) {
    constexpr float kNone = -std::numeric_limits<float>::infinity();
    for (int t = 0; t < visible_begin && t < count; t++) scores[t] = kNone;
    for (int t = visible_end < 0 ? 0 : visible_end; t < count; t++) scores[t] = kNone;
    F largest = Simd::set1(kNone);
    for (int t = 0; t < count; t += N) largest = Simd::max(largest, Simd::load(scores + t));
    const float m = Simd::reduce_max(largest);
    *sum_out = 0.0f;
    if (m == kNone) return kNone;
    F sum = Simd::zero();
    const F shift = Simd::set1(m);
    for (int t = 0; t < count; t += N) {
        const F p = vexp_of_differences(Simd::load(scores + t) - shift);
        Products<Kv>::put(weights + t, p);
        sum = sum + p;
    }
    *sum_out = Simd::reduce_add(sum);
    return m;
}

template <typename Kv>
static void attention_typed(const AttentionArgs& a) {
    constexpr float kNone = -std::numeric_limits<float>::infinity();
    float* scores = a.scratch;
    float* partial = scores + kMaxAttentionRows * kPartition;
    FloatKv* copy = reinterpret_cast<FloatKv*>(partial + kMaxAttentionRows * a.head_dim);
    Factor<Kv>* weights = reinterpret_cast<Factor<Kv>*>(scores);  // rows may be shorter than those of the scores
    Factor<Kv>* q = reinterpret_cast<Factor<Kv>*>(copy + kWideGroups * kKvGroup * a.head_dim);
    const int floats = a.group * a.head_dim;
    for (int g = 0; g < a.rows / a.group; g++) Products<Kv>::copy(a.q + g * a.q_stride, floats, q + g * floats);
    const Sight sight(a);
    for (int part = a.first_partition; part < a.end_partition; part++) {
        const Span span(sight, part);
        if (span.begin >= span.end) continue;
        score_partition<Kv>(a, q, sight, span, copy, scores);
        float row_max[kMaxAttentionRows], row_sum[kMaxAttentionRows];
        for (int r = 0; r < a.rows; r++)
            row_max[r] = softmax_row<Kv>(scores + r * kPartition, span.groups() * kKvGroup, sight.from[r] - span.begin,
                                         a.last[r] + 1 - span.begin, weights + r * kPartition, &row_sum[r]);
        for (int i = 0; i < a.rows * a.head_dim; i++) partial[i] = 0.0f;
        const int after = part + 1 < a.end_partition ? part + 1 : a.next_partition;
        weigh_partition<Kv>(a, sight, span, after, copy, weights, partial);
        const size_t state = (part - a.first_partition) * a.state_stride;
        for (int r = 0; r < a.rows; r++)
            if (row_max[r] != kNone)
                merge_partition(row_max[r], row_sum[r], partial + r * a.head_dim, a.head_dim, a.m + state + r, a.l + state + r,
                                a.acc + state + r * a.head_dim);
    }
}

}  // namespace rooftree::ROOFTREE_ISA
