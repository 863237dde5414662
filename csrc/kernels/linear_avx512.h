// Arithmetic on 16 outputs of a linear layer with AVX-512 VNNI: one register.
#pragma once

namespace lightwell::LIGHTWELL_ISA::linear {

// Tiles of a register block by its rows: 4 rows x 2 tiles are 8 integer and 8 float sums in 32 registers.
template <int Rows> constexpr int kIntTiles = 2;
template <int Rows> constexpr int kFloatTiles = Rows >= 4 ? 2 : 4;
constexpr int kFloatRows = 6;
constexpr int kStreams = 1;  // of weights for a single row: not measured with more

using Floats = __m512;
using Ints = __m512i;

LIGHTWELL_LINEAR Floats load(const float* p) { return _mm512_loadu_ps(p); }
LIGHTWELL_LINEAR void store(float* p, Floats x) { _mm512_storeu_ps(p, x); }
LIGHTWELL_LINEAR Floats multiply(Floats x, float y) { return _mm512_mul_ps(x, _mm512_set1_ps(y)); }
LIGHTWELL_LINEAR Floats multiply(Floats x, Floats y) { return _mm512_mul_ps(x, y); }
LIGHTWELL_LINEAR Floats multiply_add(Floats x, Floats y, Floats z) { return _mm512_fmadd_ps(x, y, z); }
LIGHTWELL_LINEAR Floats multiply_add(Floats x, float y, Floats z) { return _mm512_fmadd_ps(x, _mm512_set1_ps(y), z); }
LIGHTWELL_LINEAR Floats to_float(Ints x) { return _mm512_cvtepi32_ps(x); }

LIGHTWELL_LINEAR __m256i load_sixteen(const uint8_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}

LIGHTWELL_LINEAR Floats load_half(const uint8_t* p) { return _mm512_cvtph_ps(load_sixteen(p)); }

// 16 signed bytes.
LIGHTWELL_LINEAR Floats load_small(const uint8_t* p) {
  return to_float(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}

LIGHTWELL_LINEAR Floats load_bfloat(const uint8_t* p) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_sixteen(p)), 16));
}

LIGHTWELL_LINEAR Ints load_bytes(const uint8_t* p) { return _mm512_loadu_si512(p); }

LIGHTWELL_LINEAR Ints broadcast_chunk(const int8_t* a) {
  int32_t four;
  __builtin_memcpy(&four, a, 4);
  return _mm512_set1_epi32(four);
}

// The instruction multiplies unsigned by signed bytes: signed weights get 128 added, and sums start at -128 * sum(a).
template <Form form, bool has_minimum>
constexpr bool kBiased = form != Form::W4 && !has_minimum;

template <Form form, bool has_minimum>
LIGHTWELL_LINEAR Ints load_chunk(const uint8_t* weights, int chunk) {
  if constexpr (form == Form::W4) {
    const Ints pairs = load_bytes(weights + chunk / 2 * kChunkBytes);
    return _mm512_and_si512(chunk % 2 ? _mm512_srli_epi16(pairs, 4) : pairs, _mm512_set1_epi8(15));
  }
  const Ints bytes = load_bytes(weights + chunk * kChunkBytes);
  return kBiased<form, has_minimum> ? _mm512_xor_si512(bytes, _mm512_set1_epi8(-128)) : bytes;
}

// The sum of 16 activations in the low two quarters: of a + 128 as unsigned bytes, so 8 * 128 too much in each half.
LIGHTWELL_LINEAR __m128i sum_sixteen(const int8_t* a) {
  const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(a));
  return _mm_sad_epu8(_mm_xor_si128(x, _mm_set1_epi8(-128)), _mm_setzero_si128());
}

// -128 * the sum of `columns` activations, in every lane.
template <int columns>
LIGHTWELL_LINEAR Ints bias_start(const int8_t* a) {
  __m128i sum = sum_sixteen(a);
  if constexpr (columns == 32) sum = _mm_add_epi32(sum, sum_sixteen(a + 16));
  sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));  // the other half
  const __m128i start = _mm_sub_epi32(_mm_set1_epi32(128 * 128 * columns), _mm_slli_epi32(sum, 7));
  return _mm512_broadcastd_epi32(start);
}

// Integer products of part `part` of a group with rows a, a + stride, ...
template <Form form, bool has_minimum, int Rows, int Tiles>
LIGHTWELL_LINEAR void dot(const uint8_t* const (&weights)[Tiles], int part, const int8_t* a, int64_t stride,
                          Ints (&sum)[Tiles][Rows]) {
  constexpr int chunks = kChunks / scale_parts(form), columns = chunks * kChunk;
  a += part * columns;
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r) {
    const Ints start = kBiased<form, has_minimum> ? bias_start<columns>(a + r * stride) : _mm512_setzero_si512();
#pragma GCC unroll 2
    for (int t = 0; t < Tiles; ++t) sum[t][r] = start;
  }
#pragma GCC unroll 8
  for (int c = 0; c < chunks; ++c) {
    Ints w[Tiles];
#pragma GCC unroll 2
    for (int t = 0; t < Tiles; ++t) w[t] = load_chunk<form, has_minimum>(weights[t], part * chunks + c);
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) {
      const Ints four = broadcast_chunk(a + r * stride + c * kChunk);
#pragma GCC unroll 2
      for (int t = 0; t < Tiles; ++t) sum[t][r] = _mm512_dpbusd_epi32(sum[t][r], w[t], four);
    }
  }
}

}  // namespace lightwell::LIGHTWELL_ISA::linear
