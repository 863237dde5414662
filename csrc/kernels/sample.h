// Choosing a token from scores, as sampling/reference.py defines it, and log-probabilities.
// The random numbers are a hash of (seed, position, token), so each token's can be made alone and in any order.
#pragma once

#include "../kernels.h"
#include "vec.h"

namespace lightwell::LIGHTWELL_ISA {

// ---- Edits and masks

constexpr float kSmallestNormal = 1.17549435e-38f;

// Denormals count as zero in a step; here they do for any caller.
LIGHTWELL_INLINE double normal_or_zero(double x) { return __builtin_fabs(x) < kSmallestNormal ? 0.0 : x; }

// From `scores` to `out`, in double and rounded once. Of edits of one token the last counts.
static void edit(const float* scores, const Constraints& c, float* out) {
  for (int64_t e = 0; e < c.edits; ++e) {
    const double score = normal_or_zero(scores[c.tokens[e]]), factor = c.factors[e];
    const double scaled = score > 0.0 ? score / factor : score * factor;
    out[c.tokens[e]] = static_cast<float>(normal_or_zero(scaled + normal_or_zero(c.addends[e])));
  }
}

// Forbidden tokens get minus infinity. False where that leaves no token a score above it.
static bool forbid(const uint32_t* allowed, int64_t n, float* scores) {
  const Ints lane_bits = (Ints{} + 1) << lane_numbers();
  Ints possible{};
  for_vectors(n, [&](int64_t i, int64_t count) {
    const Ints word = Ints{} + static_cast<int32_t>(allowed[i / 32] >> i % 32);
    const Floats kept = (word & lane_bits) != 0 ? load(scores + i, count) : broadcast(-kInfinity);
    possible |= (kept > -kInfinity) & (lane_numbers() < static_cast<int32_t>(count));
    store(scores + i, kept, count);
  });
  return bits(possible) != 0;
}

static void constrain(const float* scores, int64_t n, const Constraints& c, float* out) {
  memcpy(out, scores, static_cast<size_t>(n) * sizeof(float));
  edit(scores, c, out);
  if (!c.allowed || forbid(c.allowed, n, out)) return;
  for (int64_t token = 0; token < n; ++token) {
    if (c.allowed[token / 32] >> token % 32 & 1) {
      out[token] = 0.0f;  // the only one that can be drawn
      return;
    }
  }
}

// ---- The order of choice

// Tokens in order of choice are by score descending, then id ascending; every filter keeps a beginning of that order.
// A cut is the last token kept. NaN scores are kept by no cut.
struct Cut {
  float score = -kInfinity;
  int32_t id = INT32_MAX;
};

// Of the tokens [id, id + count): which are kept, -1 or 0 a lane.
LIGHTWELL_INLINE Ints kept_lanes(const Cut& cut, Floats scores, int64_t id, int64_t count) {
  const Ints lane = lane_numbers(), ids = lane + static_cast<int32_t>(id);
  const Ints kept = (scores > cut.score) | ((scores == cut.score) & (ids <= cut.id));
  return kept & (lane < static_cast<int32_t>(count));
}

template <typename Visit>
LIGHTWELL_INLINE void for_bits(uint32_t mask, Visit visit) {
  for (; mask; mask &= mask - 1) visit(__builtin_ctz(mask));
}

// The highest score, the lowest id among equals; 0 where there is none above minus infinity.
static int32_t argmax(const float* scores, int64_t n) {
  Floats most[4];
  for (Floats& m : most) m = broadcast(-kInfinity);
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes)
    for (int j = 0; j < 4; ++j) most[j] = max(load(scores + i + j * kLanes), most[j]);
  float best = largest(max(max(most[0], most[1]), max(most[2], most[3])));
  for (; i < n; ++i) best = scores[i] > best ? scores[i] : best;
  if (best == -kInfinity) return 0;
  for (i = 0; i + kLanes <= n; i += kLanes) {
    const uint32_t equal = bits(load(scores + i) == best);
    if (equal) return static_cast<int32_t>(i + __builtin_ctz(equal));
  }
  while (scores[i] != best) ++i;
  return static_cast<int32_t>(i);
}

// The scores under a temperature. Everything that decides is computed in double, from scaled scores.
struct Distribution {
  const float* scores;
  int64_t n;
  float best;             // the highest score, finite
  float temperature;      // > 0
  float per_temperature;  // its reciprocal, kept finite: for bounds and for sums of many weights

  double scaled(float score) const { return static_cast<double>(score) / temperature; }
  double weight(float score) const { return __builtin_exp(scaled(score) - scaled(best)); }  // relative to the best's
  Floats weights(Floats s) const { return exp((s - best) * per_temperature); }
};

// ---- Filters. Where a filter cuts is found without sorting: tokens are counted into buckets by score, and only the
// bucket in which the cut falls is put in order.

constexpr int kBuckets = 1024;
constexpr float kNegligible = 40.0f;  // temperatures below the best: weights of 4e-18, under every top_p < 1

enum class Measure { Tokens, Weight };

struct Buckets {
  float per_score;  // buckets a unit of score, from the best down
  double sums[kBuckets] = {};

  Ints of(Floats scores, float best) const {
    return __builtin_convertvector(min((best - scores) * per_score, broadcast(kBuckets - 1)), Ints);
  }
};

static float lowest_kept(const Distribution& d, const Cut& cut) {
  Floats lowest = broadcast(d.best);
  for_vectors(d.n, [&](int64_t i, int64_t count) {
    const Floats scores = load(d.scores + i, count);
    lowest = min(kept_lanes(cut, scores, i, count) & (scores > -kInfinity) ? scores : lowest, lowest);
  });
  return -largest(-lowest);
}

static void fill_buckets(const Distribution& d, const Cut& cut, Measure measure, Buckets& buckets) {
  float span = d.best - lowest_kept(d, cut);
  if (measure == Measure::Weight && span > kNegligible * d.temperature) span = kNegligible * d.temperature;
  buckets.per_score = span > 0.0f ? __builtin_fminf(kBuckets / span, kLargestFloat) : 0.0f;
  for_vectors(d.n, [&](int64_t i, int64_t count) {
    const Floats scores = load(d.scores + i, count);
    const uint32_t kept = bits(kept_lanes(cut, scores, i, count));
    if (!kept) return;
    const Ints bucket = buckets.of(scores, d.best);
    const Floats weight = measure == Measure::Weight ? d.weights(scores) : broadcast(1.0f);
    for_bits(kept, [&](int j) { buckets.sums[bucket[j]] += weight[j]; });
  });
}

// A token as a number that sorts in order of choice: the score's bits, made monotone and descending, above the id.
typedef uint64_t Key __attribute__((may_alias, aligned(4)));  // kept in the caller's floats

LIGHTWELL_INLINE uint64_t order_key(float score, int64_t id) {
  const uint32_t word = __builtin_bit_cast(uint32_t, score + 0.0f);  // + 0: minus zero equals zero
  const uint32_t descending = word & 0x80000000u ? word : ~word & 0x7FFFFFFFu;
  return static_cast<uint64_t>(descending) << 32 | static_cast<uint32_t>(id);
}

static int64_t collect(const Distribution& d, const Cut& cut, const Buckets& buckets, int bucket, Key* keys) {
  int64_t size = 0;
  for_vectors(d.n, [&](int64_t i, int64_t count) {
    const Floats scores = load(d.scores + i, count);
    const Ints inside = kept_lanes(cut, scores, i, count) & (buckets.of(scores, d.best) == bucket);
    for_bits(bits(inside), [&](int j) { keys[size++] = order_key(scores[j], i + j); });
  });
  return size;
}

static void sift_down(Key* heap, int64_t size, int64_t at) {
  const uint64_t key = heap[at];
  for (int64_t child; (child = 2 * at + 1) < size; at = child) {
    if (child + 1 < size && heap[child + 1] < heap[child]) ++child;
    if (key <= heap[child]) break;
    heap[at] = heap[child];
  }
  heap[at] = key;
}

// The cut among the collected tokens: the first, in order, at which what comes before the bucket and they reach target.
static Cut cut_within(const Distribution& d, Key* heap, int64_t size, Measure measure, double before, double target) {
  Cut cut;
  for (int64_t i = size / 2 - 1; i >= 0; --i) sift_down(heap, size, i);
  while (size > 0) {
    cut.id = static_cast<int32_t>(heap[0]);
    cut.score = d.scores[cut.id];
    before += measure == Measure::Weight ? d.weight(cut.score) : 1.0;
    if (before >= target) break;
    heap[0] = heap[--size];
    sift_down(heap, size, 0);
  }
  return cut;
}

// Of what `cut` keeps, the smallest beginning of `amount` tokens, or of that share of the weight.
static Cut cut_at(const Distribution& d, const Cut& cut, Measure measure, double amount, float* work) {
  Buckets buckets;
  fill_buckets(d, cut, measure, buckets);
  double target = amount, before = 0.0;
  if (measure == Measure::Weight) {
    double total = 0.0;
    for (double sum : buckets.sums) total += sum;
    target = amount * total;
  }
  int bucket = 0;
  while (bucket < kBuckets && before + buckets.sums[bucket] < target) before += buckets.sums[bucket++];
  if (bucket == kBuckets) return cut;
  Key* keys = reinterpret_cast<Key*>(work);
  return cut_within(d, keys, collect(d, cut, buckets, bucket, keys), measure, before, target);
}

// A cut a little below where min_p keeps: the exact test is left to the few tokens that could be drawn.
static Cut cut_near_min_p(const Distribution& d, const Cut& cut, float min_p) {
  if (!(min_p > 0.0f)) return cut;
  const double below = -__builtin_log(static_cast<double>(min_p)) * d.temperature;
  const double score = d.best - below - 1e-6 * (__builtin_fabs(d.best) + below);
  return score > cut.score ? Cut{static_cast<float>(score), INT32_MAX} : cut;
}

static Cut filter(const Distribution& d, const SampleParams& params, float* work) {
  Cut cut;
  if (params.top_k > 0 && params.top_k < d.n) cut = cut_at(d, cut, Measure::Tokens, params.top_k, work);
  if (params.top_p < 1.0f) cut = cut_at(d, cut, Measure::Weight, params.top_p, work);
  return cut_near_min_p(d, cut, params.min_p);
}

// ---- The draw: the largest of scaled score + Gumbel noise.

struct Noise {
  uint32_t low, high;

  Noise(uint64_t seed, int64_t position) {
    uint64_t z = seed + 0x9E3779B97F4A7C15u * (static_cast<uint64_t>(position) + 1);
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    low = static_cast<uint32_t>(z);
    high = static_cast<uint32_t>(z >> 32);
  }

  template <typename Unsigned>  // of one token, or one a lane
  Unsigned bits_of(Unsigned token) const {
    Unsigned h = token * 0x9E3779B9u + low;
    h ^= h >> 16;
    h *= 0x85EBCA6Bu;
    h ^= high;
    h ^= h >> 13;
    h *= 0xC2B2AE35u;
    return h ^ h >> 16;
  }

  double gumbel(int32_t token) const {
    const double u = (bits_of(static_cast<uint32_t>(token)) + 0.5) * 0x1p-32;
    return -__builtin_log(-__builtin_log1p(-u));
  }

  // Not below any lane's noise, but for rounding (under 3e-5). With u = (h + 1/2) / 2^32, E = -log(1 - u) >= u, so
  // noise <= -log(u); and log2(h + 1/2) > 1 + log2(h >> 1) >= the exponent and mantissa bits of float(h >> 1), read as
  // one number.
  Floats bound(Words tokens) const {
    constexpr float log_2 = 0.693147181f;
    const Floats half = __builtin_convertvector((Ints)(bits_of(tokens) >> 1), Floats);
    return fma(__builtin_convertvector((Ints)half, Floats), broadcast(-log_2 * 0x1p-23f), broadcast(158.0f * log_2));
  }
};

struct Choice {
  double value;
  int32_t id;
};

// `choice` is the best token's; others are looked at closely only where their bound reaches the best found so far.
static int32_t draw(const Distribution& d, const Cut& cut, const Noise& noise, double min_p, Choice choice) {
  const double base = d.scaled(d.best), slack = 1e-3 + 1e-15 * __builtin_fabs(base);
  float needed = static_cast<float>(choice.value - base - slack);
  for_vectors(d.n, [&](int64_t i, int64_t count) {
    const Floats scores = load(d.scores + i, count);
    const Words ids = (Words)lane_numbers() + static_cast<uint32_t>(i);
    const Floats reach = (scores - d.best) * d.per_temperature + noise.bound(ids);
    const uint32_t near = bits(~(reach < needed) & kept_lanes(cut, scores, i, count));
    for_bits(near, [&](int j) {
      const int32_t id = static_cast<int32_t>(i + j);
      const double value = d.scaled(scores[j]) + noise.gumbel(id);
      if (value < choice.value || (value == choice.value && id >= choice.id) || d.weight(scores[j]) < min_p) return;
      choice = {value, id};
      needed = static_cast<float>(value - base - slack);
    });
  });
  return choice.id;
}

static int32_t sample(const float* scores, int64_t n, const SampleParams& params, float* work) {
  const int32_t best = argmax(scores, n);
  const bool finite = __builtin_fabsf(scores[best]) <= kLargestFloat;  // else there is no distribution
  if (!(params.temperature > 0.0f) || !finite) return best;
  const Distribution d{scores, n, scores[best], params.temperature, 1.0f / __builtin_fmaxf(params.temperature, 1e-30f)};
  const Noise noise(params.seed, params.position);
  return draw(d, filter(d, params, work), noise, params.min_p, {d.scaled(d.best) + noise.gumbel(best), best});
}

// ---- Log-probabilities

// A NaN score counts as impossible.
LIGHTWELL_INLINE float number_or_least(float score) { return score == score ? score : -kInfinity; }
LIGHTWELL_INLINE Floats numbers_or_least(Floats scores) { return scores == scores ? scores : broadcast(-kInfinity); }

// log of the sum of e^score; NaN where the highest is infinite, as there is no distribution.
static double log_sum_exp(const float* scores, int64_t n) {
  constexpr int64_t run = 1024;  // summed in float, the runs in double
  const float best = number_or_least(scores[argmax(scores, n)]);
  double total = 0.0;
  for (int64_t start = 0; start < n; start += run) {
    Floats part{};
    for_vectors(min(run, n - start), [&](int64_t i, int64_t count) {
      const Floats e = exp(numbers_or_least(load(scores + start + i, count)) - best);
      part += lane_numbers() < static_cast<int32_t>(count) ? e : Floats{};
    });
    total += sum(part);
  }
  return best + __builtin_log(total);
}

// Put a token into a list in order of choice, of which the last falls out.
static void insert(float score, int32_t id, int64_t size, int32_t* ids, float* scores) {
  int64_t at = size - 1;
  for (; at > 0 && score > scores[at - 1]; --at) {
    scores[at] = scores[at - 1];
    ids[at] = ids[at - 1];
  }
  scores[at] = score;
  ids[at] = id;
}

static void best_tokens(const float* scores, int64_t n, int64_t k, int32_t* ids, float* top) {
  for (int64_t i = 0; i < k; ++i) insert(number_or_least(scores[i]), static_cast<int32_t>(i), i + 1, ids, top);
  for_vectors(n - k, [&](int64_t i, int64_t count) {
    const Floats s = numbers_or_least(load(scores + k + i, count));
    for_bits(bits((s > top[k - 1]) & (lane_numbers() < static_cast<int32_t>(count))), [&](int j) {
      if (s[j] > top[k - 1]) insert(s[j], static_cast<int32_t>(k + i + j), k, ids, top);
    });
  });
}

static void logprobs(const float* scores, int64_t n, int32_t token, int64_t k, float* chosen, int32_t* top_ids,
                     float* top) {
  const double total = log_sum_exp(scores, n);
  *chosen = static_cast<float>(number_or_least(scores[token]) - total);
  if (k == 0) return;
  best_tokens(scores, n, k, top_ids, top);
  for (int64_t i = 0; i < k; ++i) top[i] = static_cast<float>(top[i] - total);
}

}  // namespace lightwell::LIGHTWELL_ISA
