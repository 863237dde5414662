// Arithmetic on 16 outputs of a linear layer with AVX2, FMA and F16C: two registers of 8 lanes.
#pragma once

namespace lightwell::LIGHTWELL_ISA::linear {

// Tiles of a register block by its rows: 4 rows x 1 tile fill the 16 registers.
template <int Rows> constexpr int kIntTiles = Rows == 1 ? 4 : Rows == 2 ? 2 : 1;
template <int Rows> constexpr int kFloatTiles = Rows == 1 ? 4 : Rows == 2 ? 2 : 1;
constexpr int kFloatRows = 6;
constexpr int kStreams = 4;  // of weights for a single row

struct Floats {
  __m256 half[2];
};
struct Ints {
  __m256i half[2];
};

LIGHTWELL_LINEAR Floats load(const float* p) { return {{_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}}; }

LIGHTWELL_LINEAR void store(float* p, const Floats& x) {
  _mm256_storeu_ps(p, x.half[0]);
  _mm256_storeu_ps(p + 8, x.half[1]);
}

LIGHTWELL_LINEAR Floats multiply(const Floats& x, float y) {
  const __m256 all = _mm256_set1_ps(y);
  return {{_mm256_mul_ps(x.half[0], all), _mm256_mul_ps(x.half[1], all)}};
}

LIGHTWELL_LINEAR Floats multiply(const Floats& x, const Floats& y) {
  return {{_mm256_mul_ps(x.half[0], y.half[0]), _mm256_mul_ps(x.half[1], y.half[1])}};
}

LIGHTWELL_LINEAR Floats multiply_add(const Floats& x, const Floats& y, const Floats& z) {
  return {{_mm256_fmadd_ps(x.half[0], y.half[0], z.half[0]), _mm256_fmadd_ps(x.half[1], y.half[1], z.half[1])}};
}

LIGHTWELL_LINEAR Floats multiply_add(const Floats& x, float y, const Floats& z) {
  const __m256 all = _mm256_set1_ps(y);
  return {{_mm256_fmadd_ps(x.half[0], all, z.half[0]), _mm256_fmadd_ps(x.half[1], all, z.half[1])}};
}

LIGHTWELL_LINEAR Floats to_float(const Ints& x) {
  return {{_mm256_cvtepi32_ps(x.half[0]), _mm256_cvtepi32_ps(x.half[1])}};
}

LIGHTWELL_LINEAR __m128i load_eight(const uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }

LIGHTWELL_LINEAR Floats load_half(const uint8_t* p) {
  return {{_mm256_cvtph_ps(load_eight(p)), _mm256_cvtph_ps(load_eight(p + 16))}};
}

// 16 signed bytes.
LIGHTWELL_LINEAR Floats load_small(const uint8_t* p) {
  const __m128i low = _mm_loadu_si64(p), high = _mm_loadu_si64(p + 8);
  return to_float({{_mm256_cvtepi8_epi32(low), _mm256_cvtepi8_epi32(high)}});
}

LIGHTWELL_LINEAR __m256 widen_bfloat(__m128i x) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
}

LIGHTWELL_LINEAR Floats load_bfloat(const uint8_t* p) {
  return {{widen_bfloat(load_eight(p)), widen_bfloat(load_eight(p + 16))}};
}

// Keeps a sum in its register: GCC would otherwise collect all products first, to add them in pairs, and spill them.
LIGHTWELL_LINEAR void pin(__m256i& x) { __asm__ volatile("" : "+x"(x)); }

LIGHTWELL_LINEAR __m256i load_bytes(const uint8_t* p) { return _mm256_load_si256(reinterpret_cast<const __m256i*>(p)); }

template <Form form>
LIGHTWELL_LINEAR __m256i load_chunk(const uint8_t* weights, int chunk, int half) {
  if constexpr (form == Form::W4) {
    const __m256i pairs = load_bytes(weights + chunk / 2 * kChunkBytes + half * 32);
    return _mm256_and_si256(chunk % 2 ? _mm256_srli_epi16(pairs, 4) : pairs, _mm256_set1_epi8(15));
  }
  return load_bytes(weights + chunk * kChunkBytes + half * 32);
}

LIGHTWELL_LINEAR __m256i broadcast_chunk(const int8_t* a) {
  int32_t four;
  __builtin_memcpy(&four, a, 4);
  return _mm256_set1_epi32(four);
}

// Whether weights are signed, and how many chunks' products of a pair of columns add up in int16: a chunk's are at most
// 2 * 127 * the largest weight in magnitude.
template <Form form, bool has_minimum>
constexpr bool kSigned = form != Form::W4 && !has_minimum;
template <Form form, bool has_minimum>
constexpr int kRun = form == Form::W4 ? 8 : has_minimum || form == Form::W8H ? 4 : 1;

// The instruction multiplies unsigned by signed bytes: for signed weights the sign moves to the activation.
template <bool is_signed>
LIGHTWELL_LINEAR __m256i multiply_pairs(__m256i weights, __m256i magnitudes, __m256i a) {
  if constexpr (is_signed) return _mm256_maddubs_epi16(magnitudes, _mm256_sign_epi8(a, weights));
  return _mm256_maddubs_epi16(weights, a);
}

// words[r] (+)= products of one chunk, in 16 lanes of pairs of columns.
template <Form form, bool has_minimum, int Rows>
LIGHTWELL_LINEAR void add_chunk(const uint8_t* weights, int chunk, bool first, const int8_t* a, int64_t stride,
                                Ints (&words)[Rows]) {
  constexpr bool is_signed = kSigned<form, has_minimum>;
  __m256i w[2], magnitude[2];
#pragma GCC unroll 2
  for (int h = 0; h < 2; ++h) {
    w[h] = load_chunk<form>(weights, chunk, h);
    magnitude[h] = is_signed ? _mm256_abs_epi8(w[h]) : w[h];
  }
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r) {
    const __m256i four = broadcast_chunk(a + r * stride + chunk * kChunk);
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      const __m256i product = multiply_pairs<is_signed>(w[h], magnitude[h], four);
      words[r].half[h] = first ? product : _mm256_add_epi16(words[r].half[h], product);
      pin(words[r].half[h]);
    }
  }
}

template <Form form, bool has_minimum, int Rows>
LIGHTWELL_LINEAR void dot_tile(const uint8_t* weights, int part, const int8_t* a, int64_t stride, Ints (&sum)[Rows]) {
  constexpr int chunks = kChunks / scale_parts(form), run = kRun<form, has_minimum>;
#pragma GCC unroll 8
  for (int begin = 0; begin < chunks; begin += run) {
    Ints words[Rows];
#pragma GCC unroll 8
    for (int c = begin; c < begin + run; ++c)
      add_chunk<form, has_minimum>(weights, part * chunks + c, c == begin, a, stride, words);
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 2
      for (int h = 0; h < 2; ++h) {
        const __m256i wide = _mm256_madd_epi16(words[r].half[h], _mm256_set1_epi16(1));
        __m256i& total = sum[r].half[h];
        total = begin == 0 ? wide : _mm256_add_epi32(total, wide);
        if (begin > 0) pin(total);
      }
  }
}

// Integer products of part `part` of a group with rows a, a + stride, ...
template <Form form, bool has_minimum, int Rows, int Tiles>
LIGHTWELL_LINEAR void dot(const uint8_t* const (&weights)[Tiles], int part, const int8_t* a, int64_t stride,
                          Ints (&sum)[Tiles][Rows]) {
#pragma GCC unroll 4
  for (int t = 0; t < Tiles; ++t) dot_tile<form, has_minimum>(weights[t], part, a, stride, sum[t]);
}

}  // namespace lightwell::LIGHTWELL_ISA::linear
