// Causal attention over a paged cache: one partition of an item, merging partitions.
// A query's scores in a partition are all there before they become weights, alone in its own lanes, and values are
// added in ascending order: how many others share the pass changes nothing for it.
#pragma once

#include "../kernels.h"
#include "kv_cells.h"
#include "vec.h"

namespace lightwell::LIGHTWELL_ISA {

constexpr int64_t kQueriesAtOnce = 48;  // a query is one head of one row; more are done in several passes
constexpr int kTileQueries = kLanes == 16 ? 12 : 6;  // times 2 vectors of columns: accumulators for most of the registers
constexpr int64_t kPartitionBlocks = kPartition / kBlock;

// c[q][j] (+)= scales[q] * sum over i of a[q][a_begin + i] * b[i][j], i ascending. Both halves of attention are this:
// scores = query x keys, and output += weights x values.
template <typename Format>
struct Product {
  const typename Format::Operand* const* a;  // one row a query
  int64_t a_begin;
  const typename Format::Cell* b;  // [depth / deep][columns][deep]
  int64_t depth, columns;
  float* c;
  int64_t c_stride;
  bool adds;
  const float* scales;                // of what is added, where the format is scaled
  const typename Format::Cell* next;  // the b that will be wanted after this one, fetched on the way
};

// One step down a register tile: each vector of b serves all its queries.
template <typename Format, int Q, int V>
LIGHTWELL_INLINE void multiply_step(typename Format::Sum (&c)[Q][V], const typename Format::Operand* const (&a)[Q],
                                    int64_t i, const typename Format::Cell* b) {
  typename Format::Columns columns[V];
#pragma GCC unroll 4
  for (int v = 0; v < V; ++v) columns[v] = Format::load_columns(b + v * kLanes * Format::deep);
#pragma GCC unroll 16
  for (int q = 0; q < Q; ++q) {
    const typename Format::Operands operand = Format::load_operand(a[q] + i);
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) accumulate(c[q][v], operand, columns[v]);
  }
}

template <typename Format, int Q, int V>
LIGHTWELL_INLINE void finish_tile(const Product<Format>& p, int64_t query, int64_t column,
                                  const typename Format::Sum (&c)[Q][V]) {
  float* out = p.c + query * p.c_stride + column;
#pragma GCC unroll 16
  for (int q = 0; q < Q; ++q, out += p.c_stride) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      Floats sum = Format::floats(c[q][v]);
      if (p.adds) {
        if constexpr (Format::scaled) sum *= p.scales[query + q];
        sum += load(out + v * kLanes);
      }
      store(out + v * kLanes, sum);
    }
  }
}

template <typename Format, int Q, int V>
static void multiply_tile(const Product<Format>& p, int64_t query, int64_t column) {
  constexpr int64_t deep = Format::deep, step_cells = V * kLanes * deep;
  const typename Format::Operand* a[Q];
  typename Format::Sum c[Q][V] = {};
#pragma GCC unroll 16
  for (int q = 0; q < Q; ++q) a[q] = p.a[query + q] + p.a_begin;
  const auto* b = p.b + column * deep;
  const auto* next = p.next + column * p.depth;  // what these columns are of b, in another shape
  for (int64_t i = 0; i < p.depth; i += 2 * deep, b += 2 * p.columns * deep, next += 2 * step_cells) {
    for (int64_t n = 0; n < 2 * step_cells; n += 64 / static_cast<int64_t>(sizeof *next)) __builtin_prefetch(next + n);
    multiply_step<Format, Q, V>(c, a, i, b);
    multiply_step<Format, Q, V>(c, a, i + deep, b + p.columns * deep);
  }
  finish_tile<Format, Q, V>(p, query, column, c);
}

template <typename Format, int Q, int V>
LIGHTWELL_INLINE int64_t multiply_columns(const Product<Format>& p, int64_t query, int64_t column) {
  for (; column + V * kLanes <= p.columns; column += V * kLanes) multiply_tile<Format, Q, V>(p, query, column);
  return column;
}

// Q queries over all columns, in wider tiles where few queries leave registers for them.
template <typename Format, int Q>
static void multiply_queries(const Product<Format>& p, int64_t query) {
  int64_t column = 0;
  if constexpr (Q <= 2) column = multiply_columns<Format, Q, 4>(p, query, column);
  column = multiply_columns<Format, Q, 2>(p, query, column);
  if constexpr (kLanes == 16) multiply_columns<Format, Q, 1>(p, query, column);
}

// The last `queries` <= Q queries.
template <typename Format, int Q>
LIGHTWELL_INLINE void multiply_last(const Product<Format>& p, int64_t query, int64_t queries) {
  if constexpr (Q > 0) {
    if (queries == Q) multiply_queries<Format, Q>(p, query);
    else multiply_last<Format, Q - 1>(p, query, queries);
  }
}

template <typename Format>
static void multiply(const Product<Format>& p, int64_t begin, int64_t end) {
  for (; begin + kTileQueries <= end; begin += kTileQueries) multiply_queries<Format, kTileQueries>(p, begin);
  multiply_last<Format, kTileQueries - 1>(p, begin, end - begin);
}

// Queries and weights in the form that is multiplied: see kv_cells.h.
template <typename Format>
struct Operands;

template <>
struct Operands<Halves> {
  static int64_t most_queries(int64_t /*head_dim*/) { return kQueriesAtOnce; }

  const float* q[kQueriesAtOnce];
  const float* weights[kQueriesAtOnce];

  float take_query(int64_t i, const float* x, int64_t /*head_dim*/) {
    q[i] = x;
    return 1.0f;
  }
  void take_weights(int64_t i, const float* x, int64_t /*begin*/, int64_t /*end*/, float /*most*/) { weights[i] = x; }
  const float* weight_scales() const { return nullptr; }
};

template <>
struct Operands<Bytes> {
  static int64_t most_queries(int64_t head_dim) { return min(kQueriesAtOnce, kQueryCells / head_dim); }

  const int16_t* q[kQueriesAtOnce];
  const int16_t* weights[kQueriesAtOnce];

  // Returns what one of the integers is worth.
  float take_query(int64_t i, const float* x, int64_t head_dim) {
    int16_t* row = q_rows_ + i * head_dim;
    q[i] = row;
    return quantize_row(x, head_dim, largest_magnitude(x, head_dim), kQueryLevels,
                        [=](int64_t d, Ints q) { store_shorts(row + d, q); });
  }
  void take_weights(int64_t i, const float* x, int64_t begin, int64_t end, float most) {
    int16_t* row = weight_rows_ + i * kPartition;
    weights[i] = row;
    weight_scales_[i] = quantize_row(x + begin, end - begin, most, kWeightLevels,
                                     [=](int64_t t, Ints w) { store_shorts(row + begin + t, w); });
  }
  const float* weight_scales() const { return weight_scales_; }

 private:
  static constexpr int64_t kQueryCells = kQueriesAtOnce * 256;

  float weight_scales_[kQueriesAtOnce];
  alignas(64) int16_t q_rows_[kQueryCells];
  alignas(64) int16_t weight_rows_[kQueriesAtOnce * kPartition];
};

// What a pass over a partition keeps for its queries.
template <typename Format>
struct Pass {
  Operands<Format> operands;
  KvHead<Format> blocks[kPartitionBlocks + kBlocksAhead];  // of the partition, and what comes after it
  float score_scale[kQueriesAtOnce];            // what a product of query and key is worth as a score
  alignas(64) float scores[kQueriesAtOnce * kPartition];
};

// The scores of a query become weights: exponentials of what they lie below the maximum, times the values' scales.
// Tokens outside [begin, end) of the pass weigh exactly zero. `stats` receives maximum and sum of exponentials.
template <typename Format>
static void soften(Pass<Format>& pass, int64_t query, float soft_cap, int64_t begin, int64_t end, float* stats) {
  const int64_t first = begin / kBlock * kBlock, last = (end + kBlock - 1) / kBlock * kBlock;
  float* x = pass.scores + query * kPartition;
  Floats most = broadcast(-kLargestFloat);  // finite, so that no difference of infinities arises
  for (int64_t t = first; t < last; t += kLanes) {
    Floats score = load(x + t) * pass.score_scale[query];
    if constexpr (Format::scaled) score *= load(pass.blocks[t / kBlock].key_scales + t % kBlock);
    if (soft_cap > 0.0f) score = soft_capped(score, soft_cap);
    if (t < begin || t + kLanes > end) {
      const Ints token = lane_numbers() + static_cast<int>(t);
      const Ints seen = (token >= static_cast<int>(begin)) & (token < static_cast<int>(end));
      score = seen ? score : broadcast(-kInfinity);
    }
    store(x + t, score);
    most = max(score, most);
  }
  const float maximum = largest(most);
  Floats total{}, most_weight{};
  for (int64_t t = first; t < last; t += kLanes) {
    Floats weight = exp(load(x + t) - maximum);
    total += weight;
    if constexpr (Format::scaled) weight *= load(pass.blocks[t / kBlock].value_scales + t % kBlock);
    store(x + t, weight);
    most_weight = max(weight, most_weight);
  }
  pass.operands.take_weights(query, x, first, last, largest(most_weight));
  stats[0] = maximum;
  stats[1] = sum(total);
}

struct Range {
  int64_t begin, end;
};

// The queries of [first, first + count) that see some of a block.
static Range seers(const AttentionItem& item, int64_t first, int64_t count, int64_t block) {
  const int64_t ahead = block * kBlock - item.first_position;  // of row 0: the first row that sees the block
  const int64_t past = item.window ? min(ahead + kBlock - 1 + item.window, item.rows) : item.rows;
  return {max(ahead * item.heads - first, 0), min(past * item.heads - first, count)};
}

// The positions within blocks [begin, end) that a row sees, counted from the first of them.
static Range seen(const AttentionItem& item, int64_t row, int64_t begin, int64_t end) {
  const int64_t past = item.first_position + row + 1, first = item.window ? past - item.window : 0;
  return {max(first - begin * kBlock, 0), min(past, end * kBlock) - begin * kBlock};
}

template <typename Format>
static void score(const AttentionItem& item, Pass<Format>& pass, int64_t first, int64_t count, int64_t begin,
                  int64_t end) {
  const int64_t blocks = end - begin;
  for (int64_t i = 0; i < blocks; ++i) {
    const Range queries = seers(item, first, count, begin + i);
    const int64_t ahead = i + kBlocksAhead;
    const auto* next = ahead < blocks ? pass.blocks[ahead].keys : pass.blocks[ahead - blocks].values;
    multiply<Format>({pass.operands.q, 0, pass.blocks[i].keys, item.head_dim, kBlock, pass.scores + i * kBlock,
                      kPartition, false, nullptr, next},
                     queries.begin, queries.end);
  }
}

template <typename Format>
static void add_values(const AttentionItem& item, Pass<Format>& pass, int64_t first, int64_t count, int64_t begin,
                       int64_t end, float* partial) {
  const int64_t blocks = end - begin;
  for (int64_t i = 0; i < blocks; ++i) {
    const Range queries = seers(item, first, count, begin + i);
    const int64_t ahead = i + kBlocksAhead;
    const auto* next = ahead < blocks ? pass.blocks[ahead].values : pass.blocks[ahead].keys;
    multiply<Format>({pass.operands.weights, i * kBlock, pass.blocks[i].values, kBlock, item.head_dim, partial,
                      item.head_dim + 2, true, pass.operands.weight_scales(), next},
                     queries.begin, queries.end);
  }
}

// Where the blocks of the pass lie, and those to fetch after them: of the next partition, or of the next item.
template <typename Format>
static void place(const AttentionItem& item, Pass<Format>& pass, int64_t begin, int64_t end) {
  const int64_t past = (item.first_position + item.rows - 1) / kBlock + 1;
  for (int64_t i = begin; i < end + kBlocksAhead; ++i) {
    const uint8_t* share = i < past ? item.cache + item.blocks[i] * item.block_stride : item.next[i - past];
    pass.blocks[i - begin] = kv_head<Format>(share, item.head_dim);
  }
  if constexpr (Format::scaled) {
    for (int64_t i = kBlocksAhead; i < end + kBlocksAhead - begin; ++i) {
      for (int64_t t = 0; t < 2 * kBlock; t += 16) __builtin_prefetch(pass.blocks[i].key_scales + t);
    }
  }
}

// Queries [first, first + count) of the item over blocks [begin, end) of one partition.
template <typename Format>
static void attend(const AttentionItem& item, int64_t first, int64_t count, int64_t begin, int64_t end,
                   float* partial) {
  const int64_t stride = item.head_dim + 2;
  Pass<Format> pass;
  place(item, pass, begin, end);
  for (int64_t i = 0; i < count; ++i) {
    const float* q = item.q + (first + i) / item.heads * item.q_stride + (first + i) % item.heads * item.head_dim;
    pass.score_scale[i] = item.scale * pass.operands.take_query(i, q, item.head_dim);
  }
  score(item, pass, first, count, begin, end);
  memset(partial, 0, static_cast<size_t>(count * stride) * sizeof(float));
  for (int64_t i = 0; i < count; ++i) {
    float* stats = partial + i * stride + item.head_dim;
    const Range tokens = seen(item, (first + i) / item.heads, begin, end);
    if (tokens.begin < tokens.end) soften(pass, i, item.soft_cap, tokens.begin, tokens.end, stats);
    else stats[0] = -kInfinity;
  }
  add_values(item, pass, first, count, begin, end, partial);
}

template <typename Format>
static void attention_part(const AttentionItem& item, int64_t part, float* partial) {
  const int64_t last = item.first_position + item.rows;
  const int64_t first = item.window ? max(item.first_position - item.window + 1, 0) : 0;
  const int64_t begin = max(part * kPartition, first) / kBlock;
  const int64_t end = (min((part + 1) * kPartition, last) + kBlock - 1) / kBlock;
  const int64_t queries = item.rows * item.heads, most = Operands<Format>::most_queries(item.head_dim);
  for (int64_t i = 0; i < queries; i += most)
    attend<Format>(item, i, min(most, queries - i), begin, end, partial + i * (item.head_dim + 2));
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
