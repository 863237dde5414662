// Causal attention over a paged cache: writing a token, one partition of an item, merging partitions.
// Every query goes through its blocks in ascending order with an online softmax (Milakov and Gimelshein, 2018), alone
// in its own lanes: how many others share the pass changes nothing for it.
#pragma once

#include "../kernels.h"
#include "vec.h"

namespace lightwell::LIGHTWELL_ISA {

constexpr int64_t kQueriesAtOnce = 96;  // a query is one head of one row; more are done in several passes
constexpr int kTileQueries = 6;         // times 2 vectors of columns: 12 accumulators in registers

// These two alone know what a cell is.
LIGHTWELL_INLINE Floats load_cells(const KvCell* p) { return load_halves(p); }

// The cache must never hold NaN or infinity, as unseen slots are multiplied by zero and would poison other rows.
LIGHTWELL_INLINE void store_cells(KvCell* p, Floats x) {
  const Floats largest = broadcast(65504.0f), number = (Floats)((Words)x & (Words)(x == x));
  store_halves(p, min(max(number, -largest), largest));
}

static void store_kv(const float* __restrict key, const float* __restrict value, int64_t head_dim,
                     KvCell* __restrict keys, KvCell* __restrict values, int64_t slot) {
  for (int64_t d = 0; d < head_dim; d += kLanes) {
    KvCell column[kLanes];
    store_cells(column, load(key + d));
    for (int j = 0; j < kLanes; ++j) keys[(d + j) * kBlock + slot] = column[j];
    store_cells(values + slot * head_dim + d, load(value + d));
  }
}

// c[q][j] = c[q][j] * keep[q] + sum over i of a[q][i] * b[i][j], i ascending. Both halves of attention are this:
// scores = query x keys, and output = exponentials x values.
struct Product {
  const float* const* a;  // one row a query, `depth` long
  const KvCell* b;        // [depth][columns]
  int64_t depth, columns;
  float* c;
  int64_t c_stride;
  const float* keep;   // null: c starts at zero
  const KvCell* next;  // the b that will be wanted after this one, fetched on the way
};

// One i of a register tile: each vector of b serves all its queries.
template <int Q, int V>
LIGHTWELL_INLINE void multiply_step(Floats (&c)[Q][V], const float* const (&a)[Q], int64_t i, const KvCell* b) {
  Floats columns[V];
#pragma GCC unroll 4
  for (int v = 0; v < V; ++v) columns[v] = load_cells(b + v * kLanes);
#pragma GCC unroll 8
  for (int q = 0; q < Q; ++q) {
    const Floats weight = broadcast(a[q][i]);
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) accumulate(c[q][v], weight, columns[v]);
  }
}

template <int Q, int V>
static void multiply_tile(const Product& p, int64_t query, int64_t column) {
  const float* a[Q];
  Floats c[Q][V];
  float* out = p.c + query * p.c_stride + column;
#pragma GCC unroll 8
  for (int q = 0; q < Q; ++q) {
    a[q] = p.a[query + q];
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v)
      c[q][v] = p.keep ? load(out + q * p.c_stride + v * kLanes) * p.keep[query + q] : Floats{};
  }
  const KvCell* b = p.b + column;
  const KvCell* next = p.next + column * p.depth;  // what these columns are of b, in another shape
  for (int64_t i = 0; i < p.depth; i += 2, b += 2 * p.columns, next += 2 * V * kLanes) {
    for (int v = 0; v < 2 * V * kLanes; v += 64 / static_cast<int>(sizeof(KvCell))) __builtin_prefetch(next + v);
    multiply_step<Q, V>(c, a, i, b);
    multiply_step<Q, V>(c, a, i + 1, b + p.columns);
  }
#pragma GCC unroll 8
  for (int q = 0; q < Q; ++q) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) store(out + q * p.c_stride + v * kLanes, c[q][v]);
  }
}

template <int Q, int V>
LIGHTWELL_INLINE int64_t multiply_columns(const Product& p, int64_t query, int64_t column) {
  for (; column + V * kLanes <= p.columns; column += V * kLanes) multiply_tile<Q, V>(p, query, column);
  return column;
}

// Q queries over all columns, in wider tiles where few queries leave registers for them.
template <int Q>
static void multiply_queries(const Product& p, int64_t query) {
  int64_t column = 0;
  if constexpr (Q <= 2) column = multiply_columns<Q, 4>(p, query, column);
  column = multiply_columns<Q, 2>(p, query, column);
  if constexpr (kLanes == 16) multiply_columns<Q, 1>(p, query, column);
}

static void multiply(const Product& p, int64_t begin, int64_t end) {
  constexpr void (*last[])(const Product&, int64_t) = {multiply_queries<1>, multiply_queries<2>, multiply_queries<3>,
                                                       multiply_queries<4>, multiply_queries<5>};
  for (; begin + kTileQueries <= end; begin += kTileQueries) multiply_queries<kTileQueries>(p, begin);
  if (begin < end) last[end - begin - 1](p, begin);
}

// What a pass over a partition keeps for each of its queries.
struct Pass {
  const float* q[kQueriesAtOnce];
  const float* weights[kQueriesAtOnce];  // rows of `scores`
  float maximum[kQueriesAtOnce];
  float keep[kQueriesAtOnce];    // what the new maximum leaves of the sums so far
  Floats total[kQueriesAtOnce];  // of exponentials, by lane
  alignas(64) float scores[kQueriesAtOnce * kBlock];
};

// Scores of one query in a block become exponentials. Tokens outside [begin, end) get exactly zero; the running maximum
// is always finite, so that no difference of infinities arises.
static void soften(Pass& pass, int64_t query, float scale, float soft_cap, int64_t begin, int64_t end) {
  constexpr int vectors = kBlock / kLanes;
  float* scores = pass.scores + query * kBlock;
  Floats x[vectors], most = broadcast(pass.maximum[query]);
  for (int v = 0; v < vectors; ++v) {
    x[v] = load(scores + v * kLanes) * scale;
    if (soft_cap > 0.0f) x[v] = soft_capped(x[v], soft_cap);
    if (end - begin < kBlock) {
      const Ints token = lane_numbers() + v * kLanes;
      x[v] = (token >= static_cast<int>(begin)) & (token < static_cast<int>(end)) ? x[v] : broadcast(-kInfinity);
    }
    most = max(x[v], most);
  }
  const float before = pass.maximum[query], now = largest(most);
  Floats total{};
  for (int v = 0; v < vectors; ++v) {
    x[v] = exp(x[v] - now);
    store(scores + v * kLanes, x[v]);
    total += x[v];
  }
  const float keep = now > before ? exp(broadcast(before - now))[0] : 1.0f;
  pass.maximum[query] = now;
  pass.keep[query] = keep;
  pass.total[query] = fma(pass.total[query], broadcast(keep), total);
}

// Queries [begin, end) of a pass, all of which see some of the block, over that block.
static void attend_block(const AttentionItem& item, Pass& pass, int64_t first, int64_t begin, int64_t end,
                         int64_t block, float* sums) {
  const int64_t last_block = (item.first_position + item.rows - 1) / kBlock;
  const KvCell* keys = item.cache + item.blocks[block] * item.block_stride;
  const KvCell* next = item.cache + item.blocks[min(block + 1, last_block)] * item.block_stride;
  const KvCell *values = keys + item.values_offset, *next_values = next + item.values_offset;
  multiply({pass.q, keys, item.head_dim, kBlock, pass.scores, kBlock, nullptr, next}, begin, end);
  for (int64_t i = begin; i < end; ++i) {
    const int64_t last_seen = item.first_position + (first + i) / item.heads - block * kBlock;
    const int64_t first_seen = item.window ? last_seen - item.window + 1 : 0;
    soften(pass, i, item.scale, item.soft_cap, max(first_seen, 0), min(last_seen + 1, kBlock));
  }
  multiply({pass.weights, values, kBlock, item.head_dim, sums, item.head_dim + 2, pass.keep, next_values}, begin, end);
}

// Queries [first, first + count) of the item over blocks [block_begin, block_end).
static void attend(const AttentionItem& item, int64_t first, int64_t count, int64_t block_begin, int64_t block_end,
                   float* partial) {
  const int64_t stride = item.head_dim + 2;
  Pass pass;
  for (int64_t i = 0; i < count; ++i) {
    pass.q[i] = item.q + (first + i) / item.heads * item.q_stride + (first + i) % item.heads * item.head_dim;
    pass.weights[i] = pass.scores + i * kBlock;
    pass.maximum[i] = -kLargestFloat;
    pass.total[i] = Floats{};
  }
  memset(partial, 0, static_cast<size_t>(count * stride) * sizeof(float));
  for (int64_t block = block_begin; block < block_end; ++block) {
    const int64_t ahead = block * kBlock - item.first_position;  // of row 0: the first row that sees the block
    const int64_t past = item.window ? min(ahead + kBlock - 1 + item.window, item.rows) : item.rows;
    const int64_t begin = max(ahead * item.heads - first, 0), end = min(past * item.heads - first, count);
    if (begin < end) attend_block(item, pass, first, begin, end, block, partial);
  }
  for (int64_t i = 0; i < count; ++i) {
    const float total = sum(pass.total[i]);
    partial[i * stride + item.head_dim] = total == 0.0f ? -kInfinity : pass.maximum[i];
    partial[i * stride + item.head_dim + 1] = total;
  }
}

static void attention_part(const AttentionItem& item, int64_t part, float* partial) {
  const int64_t last = item.first_position + item.rows;
  const int64_t first = item.window ? max(item.first_position - item.window + 1, 0) : 0;
  const int64_t begin = max(part * kPartition, first) / kBlock;
  const int64_t end = (min((part + 1) * kPartition, last) + kBlock - 1) / kBlock;
  const int64_t queries = item.rows * item.heads;
  for (int64_t i = 0; i < queries; i += kQueriesAtOnce)
    attend(item, i, min(kQueriesAtOnce, queries - i), begin, end, partial + i * (item.head_dim + 2));
}

// One query: partials of what it does not see are skipped, so that it makes no difference whether they are there.
// `sink` is a score without a value, -infinity where there is none.
static void merge_query(const float* const* partials, int64_t count, int64_t offset, int64_t head_dim, float sink,
                        float* out) {
  float most = sink, total = 0.0f;
  for (int64_t p = 0; p < count; ++p) {
    const float maximum = partials[p][offset + head_dim];
    most = maximum > most ? maximum : most;
  }
  memset(out, 0, static_cast<size_t>(head_dim) * sizeof(float));
  if (sink > -kInfinity) total = exp(broadcast(sink - most))[0];
  for (int64_t p = 0; p < count; ++p) {
    const float* part = partials[p] + offset;
    if (part[head_dim + 1] == 0.0f) continue;
    const Floats weight = exp(broadcast(part[head_dim] - most));
    total += weight[0] * part[head_dim + 1];
    for (int64_t d = 0; d < head_dim; d += kLanes) store(out + d, fma(load(part + d), weight, load(out + d)));
  }
  const float factor = total == 0.0f ? 0.0f : 1.0f / total;
  for (int64_t d = 0; d < head_dim; d += kLanes) store(out + d, load(out + d) * factor);
}

static void attention_merge(const AttentionItem& item, const float* const* partials, int64_t count) {
  for (int64_t i = 0; i < item.rows * item.heads; ++i) {
    float* out = item.out + i / item.heads * item.out_stride + i % item.heads * item.head_dim;
    const float sink = item.sinks ? item.sinks[i % item.heads] : -kInfinity;
    merge_query(partials, count, i * (item.head_dim + 2), item.head_dim, sink, out);
  }
}

}  // namespace lightwell::LIGHTWELL_ISA
