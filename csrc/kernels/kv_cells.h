// What the cells of the KV cache are, and how attention multiplies them: halves one by one as floats, int8 in pairs of
// neighbours, as 16-bit integers whose products add up in 32 bits without rounding. attention.h is one text for both.
#pragma once

#include "../kernels.h"
#include "vec.h"

namespace lightwell::LIGHTWELL_ISA {

typedef int16_t Shorts __attribute__((vector_size(4 * kLanes)));  // twice the lanes of Floats

// kLanes pairs of int8, each as a pair of 16-bit integers.
LIGHTWELL_INLINE Shorts load_pairs(const int8_t* p) {
#if defined(__AVX512F__)
  return (Shorts)_mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i*)p));
#elif defined(__AVX2__)
  return (Shorts)_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)p));
#elif defined(__x86_64__)
  return (Shorts)_mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i*)p));
#else
  typedef int8_t Bytes __attribute__((vector_size(2 * kLanes)));
  Bytes bytes;
  memcpy(&bytes, p, sizeof bytes);
  return __builtin_convertvector(bytes, Shorts);
#endif
}

// One pair in every lane.
LIGHTWELL_INLINE Shorts broadcast_pair(const int16_t* p) {
  int32_t pair;
  memcpy(&pair, p, sizeof pair);
  return (Shorts)(pair - Ints{});
}

// Lane by lane c += a0 * b0 + a1 * b1.
LIGHTWELL_INLINE void accumulate(Ints& c, Shorts a, Shorts b) {
#if defined(__AVX512F__)
  c = (Ints)_mm512_dpwssd_epi32((__m512i)c, (__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  c += (Ints)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__x86_64__)
  c += (Ints)_mm_madd_epi16((__m128i)a, (__m128i)b);
#else
  for (int i = 0; i < kLanes; ++i) c[i] += a[2 * i] * b[2 * i] + a[2 * i + 1] * b[2 * i + 1];
#endif
}

// Integers of -32767..32767, in order.
LIGHTWELL_INLINE void store_shorts(int16_t* p, Ints v) {
#if defined(__AVX512F__)
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtsepi32_epi16((__m512i)v));
#elif defined(__AVX2__)
  const __m128i low = _mm256_castsi256_si128((__m256i)v), high = _mm256_extracti128_si256((__m256i)v, 1);
  _mm_storeu_si128((__m128i*)p, _mm_packs_epi32(low, high));
#elif defined(__x86_64__)
  _mm_storel_epi64((__m128i*)p, _mm_packs_epi32((__m128i)v, (__m128i)v));
#else
  for (int i = 0; i < kLanes; ++i) p[i] = static_cast<int16_t>(v[i]);
#endif
}

// The cache must never hold NaN or infinity, as unseen slots are multiplied by zero and would poison other rows.
LIGHTWELL_INLINE Floats finite(Floats x) {
  const Floats largest = broadcast(65504.0f), number = (Floats)((Words)x & (Words)(x == x));
  return min(max(number, -largest), largest);
}

// Multiplied as floats. What multiplies a cell, an operand, is a float.
struct Halves {
  using Cell = uint16_t;
  using Operand = float;
  using Operands = Floats;  // one operand, in every lane
  using Columns = Floats;
  using Sum = Floats;
  static constexpr int64_t deep = 1;  // cells of a column that lie side by side and are multiplied at once
  static constexpr bool scaled = false;

  LIGHTWELL_INLINE Columns load_columns(const Cell* p) { return load_halves(p); }
  LIGHTWELL_INLINE Operands load_operand(const Operand* p) { return broadcast(*p); }
  LIGHTWELL_INLINE Floats floats(Sum sum) { return sum; }
};

// Each token has one scale for its key and one for its value. Queries and weights are quantized as well, more finely
// than cells: queries so that kMostHeadDim products stay below 2^31, weights as finely as 16 bits can.
constexpr float kQueryLevels = 8191.0f, kWeightLevels = 32767.0f;
constexpr float kSmallestRow = 1e-33f;  // of less the levels / largest magnitude would overflow: such rows are zeros

struct Bytes {
  using Cell = int8_t;
  using Operand = int16_t;
  using Operands = Shorts;
  using Columns = Shorts;
  using Sum = Ints;
  static constexpr int64_t deep = 2;
  static constexpr bool scaled = true;

  LIGHTWELL_INLINE Columns load_columns(const Cell* p) { return load_pairs(p); }
  LIGHTWELL_INLINE Operands load_operand(const Operand* p) { return broadcast_pair(p); }
  LIGHTWELL_INLINE Floats floats(Sum sum) { return __builtin_convertvector(sum, Floats); }
};

// One KV head's share of a block (kernels.h has the layout).
template <typename Format>
struct KvHead {
  const typename Format::Cell *keys, *values;
  const float *key_scales, *value_scales;  // [kBlock], null where cells have none
};

template <typename Format>
LIGHTWELL_INLINE KvHead<Format> kv_head(const uint8_t* data, int64_t head_dim) {
  const auto* cells = (const typename Format::Cell*)data;
  const auto* scales = Format::scaled ? (const float*)(cells + 2 * kBlock * head_dim) : nullptr;
  return {cells, cells + kBlock * head_dim, scales, scales ? scales + kBlock : nullptr};
}

static void store_halves_kv(const float* __restrict key, const float* __restrict value, int64_t head_dim,
                            uint8_t* __restrict data, int64_t slot) {
  uint16_t* keys = (uint16_t*)data;
  uint16_t* values = keys + kBlock * head_dim + slot * head_dim;
  for (int64_t d = 0; d < head_dim; d += kLanes) {
    uint16_t column[kLanes];
    store_halves(column, finite(load(key + d)));
    for (int j = 0; j < kLanes; ++j) keys[(d + j) * kBlock + slot] = column[j];
    store_halves(values + d, finite(load(value + d)));
  }
}

// x[i] * levels / most, to the nearest integer, is what `put(i, integers)` gets for each vector of x[0..n), n a
// multiple of 16 and `most` its largest magnitude; returns what an integer is worth. Where `most` is infinity or NaN,
// that is such a number, and the integers are zeros.
template <typename Put>
LIGHTWELL_INLINE float quantize_row(const float* x, int64_t n, float most, float levels, Put put) {
  const bool usable = most >= kSmallestRow && most <= kLargestFloat;
  const Floats factor = broadcast(usable ? levels / most : 0.0f);
  const Ints keep = Ints{} - static_cast<int32_t>(usable);
  for (int64_t i = 0; i < n; i += kLanes) put(i, nearest(load(x + i) * factor) & keep);
  return most < kSmallestRow ? 0.0f : most / levels;
}

// A key or value with NaN as 0 and large numbers cut, to cells place(d); returns their scale.
template <typename Place>
LIGHTWELL_INLINE float store_bytes_row(const float* __restrict x, int64_t head_dim, int8_t* __restrict cells,
                                       Place place) {
  alignas(64) float row[kMostHeadDim];
  for (int64_t d = 0; d < head_dim; d += kLanes) store(row + d, finite(load(x + d)));
  return quantize_row(row, head_dim, largest_magnitude(row, head_dim), 127.0f, [&](int64_t d, Ints q) {
    for (int j = 0; j < kLanes; ++j) cells[place(d + j)] = static_cast<int8_t>(q[j]);
  });
}

static void store_bytes_kv(const float* __restrict key, const float* __restrict value, int64_t head_dim,
                           uint8_t* __restrict data, int64_t slot) {
  int8_t* keys = (int8_t*)data;
  int8_t* values = keys + kBlock * head_dim;
  float* scales = (float*)(values + kBlock * head_dim) + slot;
  scales[0] = store_bytes_row(key, head_dim, keys, [=](int64_t d) { return (d / 2 * kBlock + slot) * 2 + d % 2; });
  scales[kBlock] = store_bytes_row(value, head_dim, values,
                                   [=](int64_t d) { return (slot / 2 * head_dim + d) * 2 + slot % 2; });
}

}  // namespace lightwell::LIGHTWELL_ISA
