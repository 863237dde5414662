// A vector of floats as wide as the instruction set has: 4 lanes portably, 8 with AVX2, 16 with AVX-512. The row,
// attention and sampling kernels are written once over it; GCC's vector extensions give arithmetic and comparisons.
// Nothing here or in the kernels uses std templates: the linker could keep the copy compiled for AVX-512 for every CPU.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#pragma GCC diagnostic push  // GCC 12 warns of values that its own AVX-512 header leaves undefined on purpose
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#endif

#define LIGHTWELL_INLINE static inline __attribute__((always_inline))

namespace lightwell::LIGHTWELL_ISA {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

typedef float Floats __attribute__((vector_size(4 * kLanes)));
typedef int32_t Ints __attribute__((vector_size(4 * kLanes)));    // also the result of a comparison: -1 or 0 a lane
typedef uint32_t Words __attribute__((vector_size(4 * kLanes)));

constexpr float kInfinity = __builtin_inff();
constexpr float kLargestFloat = 3.40282347e38f;
constexpr float kSmallestQuantized = 4e-37f;  // below this largest magnitude 127 / amax would overflow: such are zeros

LIGHTWELL_INLINE int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }
LIGHTWELL_INLINE int64_t max(int64_t a, int64_t b) { return a > b ? a : b; }

LIGHTWELL_INLINE Floats broadcast(float x) { return x - Floats{}; }

LIGHTWELL_INLINE Floats load(const float* p) {
  Floats v;
  memcpy(&v, p, sizeof v);
  return v;
}

// The first `count` lanes from memory, zero in the others.
LIGHTWELL_INLINE Floats load(const float* p, int64_t count) {
  if (count == kLanes) return load(p);
  Floats v{};
  memcpy(&v, p, static_cast<size_t>(count) * sizeof(float));
  return v;
}

LIGHTWELL_INLINE void store(float* p, Floats v) { memcpy(p, &v, sizeof v); }

LIGHTWELL_INLINE void store(float* p, Floats v, int64_t count) {
  if (count == kLanes) return store(p, v);
  memcpy(p, &v, static_cast<size_t>(count) * sizeof(float));
}

// Call body(i, count) for each vector of a row of n: count is kLanes, but for the last what is left.
template <typename Body>
LIGHTWELL_INLINE void for_vectors(int64_t n, Body body) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) body(i, static_cast<int64_t>(kLanes));
  if (i < n) body(i, n - i);
}

// a * b + c, with one rounding where the CPU has it.
LIGHTWELL_INLINE Floats fma(Floats a, Floats b, Floats c) {
#if defined(__AVX512F__)
  return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
  return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  return a * b + c;
#endif
}

// a > b ? a : b: where a is NaN the result is b.
LIGHTWELL_INLINE Floats max(Floats a, Floats b) {
#if defined(__AVX512F__)
  return (Floats)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
  return (Floats)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined(__x86_64__)
  return (Floats)_mm_max_ps((__m128)a, (__m128)b);
#else
  return a > b ? a : b;
#endif
}

// a < b ? a : b: where a is NaN the result is b.
LIGHTWELL_INLINE Floats min(Floats a, Floats b) { return -max(-a, -b); }

// c = fma(a, b, c) for register tiles that take all 16 registers of AVX2. Left to itself GCC 12 often writes the sum
// over a multiplicand and then spills accumulators to make room, which costs a third of the speed.
LIGHTWELL_INLINE void accumulate(Floats& c, Floats a, Floats b) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  asm("vfmadd231ps %2, %1, %0" : "+x"(c) : "x"(a), "x"(b));
#else
  c = fma(a, b, c);
#endif
}

// One bit a lane: set where the comparison held.
LIGHTWELL_INLINE uint32_t bits(Ints comparison) {
#if defined(__AVX512F__)
  return _mm512_movepi32_mask((__m512i)comparison);
#elif defined(__AVX2__)
  return static_cast<uint32_t>(_mm256_movemask_ps((__m256)comparison));
#else
  uint32_t mask = 0;
  for (int i = 0; i < kLanes; ++i) mask |= static_cast<uint32_t>(comparison[i] & 1) << i;
  return mask;
#endif
}

// The lanes folded by halves, always in this order: lane i with lane i + width / 2, down to one.
template <typename Vector, typename Fold>
LIGHTWELL_INLINE auto fold(Vector v, Fold both) {
  typedef __typeof__(v[0] + v[0]) Lane;
#if defined(__AVX2__)
  typedef Lane Eight __attribute__((vector_size(32)));
  typedef Lane Four __attribute__((vector_size(16)));
#if defined(__AVX512F__)
  const Eight eight = both((Eight)_mm512_castps512_ps256((__m512)v),
                           (Eight)_mm256_castpd_ps(_mm512_extractf64x4_pd((__m512d)v, 1)));
#else
  const Eight eight = v;
#endif
  Four four = both((Four)_mm256_castps256_ps128((__m256)eight), (Four)_mm256_extractf128_ps((__m256)eight, 1));
  four = both(four, (Four)_mm_movehl_ps((__m128)four, (__m128)four));
  const Lane left = four[0], right = four[1];
#else
  const Lane left = both(v[0], v[2]), right = both(v[1], v[3]);
#endif
  return both(left, right);
}

template <typename Vector>
LIGHTWELL_INLINE auto sum(Vector v) {
  return fold(v, [](auto a, auto b) { return a + b; });
}

template <typename Vector>
LIGHTWELL_INLINE auto largest(Vector v) {
  return fold(v, [](auto a, auto b) { return a > b ? a : b; });
}

// The largest |x| of n numbers, a multiple of kLanes. Compared as integers, so that infinity and NaN are above all.
LIGHTWELL_INLINE float largest_magnitude(const float* x, int64_t n) {
  Ints high{};
  for (int64_t i = 0; i < n; i += kLanes) {
    const Ints magnitude = (Ints)load(x + i) & 0x7FFFFFFF;
    high = magnitude > high ? magnitude : high;
  }
  return __builtin_bit_cast(float, largest(high));
}

// 0, 1, 2, ... one a lane.
LIGHTWELL_INLINE Ints lane_numbers() {
  Ints v{};
  for (int i = 0; i < kLanes; ++i) v[i] = i;
  return v;
}

// kLanes finite IEEE halves, exactly. The portable way makes no denormal floats, which may count as zero: a subnormal
// half first gets the leading one and the exponent of a normal, m = 2^-15 (1 + f) for 2^-14 f, then loses 2^-14 - m.
LIGHTWELL_INLINE Floats load_halves(const uint16_t* p) {
#if defined(__AVX512F__)
  return (Floats)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
#elif defined(__AVX2__)
  return (Floats)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p));
#else
#if defined(__x86_64__)
  const Words extended = (Words)_mm_cvtepi16_epi32(_mm_loadl_epi64((const __m128i*)p));
#else
  typedef int16_t Shorts __attribute__((vector_size(2 * kLanes)));
  Shorts halves;
  memcpy(&halves, p, sizeof halves);
  const Words extended = (Words)__builtin_convertvector(halves, Ints);
#endif
  const Floats magnitude = (Floats)(((extended & 0x7FFFu) << 13) + (112u << 23));
  const Floats exact = magnitude - max(0x1p-14f - magnitude, Floats{});
  return (Floats)((Words)exact | (extended & 0x80000000u));
#endif
}

// To kLanes IEEE halves, nearest even, for |v| < 65520. The portable way rounds a subnormal result by adding 0.5, whose
// last place is that of subnormal halves.
LIGHTWELL_INLINE void store_halves(uint16_t* p, Floats v) {
#if defined(__AVX512F__)
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__AVX2__)
  _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT));
#else
  typedef uint16_t Halves __attribute__((vector_size(2 * kLanes)));
  const Words magnitude = (Words)v & 0x7FFFFFFFu, sign = (Words)v >> 16 & 0x8000u;
  const Words subnormal = (Words)((Floats)magnitude + 0.5f) - (126u << 23);
  const Words normal = (magnitude - (112u << 23) + 0xFFFu + (magnitude >> 13 & 1u)) >> 13;
  const Words rounded = (Ints)magnitude < (113 << 23) ? subnormal : normal;
  const Halves halves = __builtin_convertvector(rounded | sign, Halves);
  memcpy(p, &halves, sizeof halves);
#endif
}

// To the nearest integer, ties to even, for |v| < 2^22; anything else gives some number.
// Adding 1.5 * 2^23 leaves the integer in the low bits of the sum.
constexpr float kRound = 12582912.0f;
LIGHTWELL_INLINE Ints nearest(Floats v) { return (Ints)((Words)(v + kRound) - 0x4B400000u); }

// 32 integers of -128..127, in order, as bytes.
LIGHTWELL_INLINE void store_bytes(int8_t* p, const Ints (&v)[32 / kLanes]) {
#if defined(__AVX512F__)
  _mm_storeu_si128((__m128i*)p, _mm512_cvtsepi32_epi8((__m512i)v[0]));
  _mm_storeu_si128((__m128i*)(p + 16), _mm512_cvtsepi32_epi8((__m512i)v[1]));
#elif defined(__AVX2__)
  const __m256i low = _mm256_packs_epi32((__m256i)v[0], (__m256i)v[1]);  // packs work within halves of 16 bytes,
  const __m256i high = _mm256_packs_epi32((__m256i)v[2], (__m256i)v[3]);
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);  // so four bytes at a time go to their places
  _mm256_storeu_si256((__m256i*)p, _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order));
#elif defined(__x86_64__)
  for (int i = 0; i < 2; ++i) {
    const __m128i low = _mm_packs_epi32((__m128i)v[4 * i], (__m128i)v[4 * i + 1]);
    const __m128i high = _mm_packs_epi32((__m128i)v[4 * i + 2], (__m128i)v[4 * i + 3]);
    _mm_storeu_si128((__m128i*)(p + 16 * i), _mm_packs_epi16(low, high));
  }
#else
  for (int i = 0; i < 32; ++i) p[i] = static_cast<int8_t>(v[i / kLanes][i % kLanes]);
#endif
}

// e^x within 2 ulp for x <= 88; exactly 1 at 0 and exactly 0 below -87, minus infinity included.
// x = n ln 2 + r with |r| <= ln 2 / 2; e^r = 1 + r + r^2 P(r) with P fitted to a relative error of 3e-9; then n is
// added to the exponent.
LIGHTWELL_INLINE Floats exp(Floats x) {
  const Floats rounded = fma(x, broadcast(1.44269504f), broadcast(kRound));
  const Floats n = rounded - kRound;
  Floats r = fma(n, broadcast(-0.693359375f), x);  // ln 2 in two parts, the first short so that n times it is exact
  r = fma(n, broadcast(2.12194440e-4f), r);
  Floats p = broadcast(1.38145406e-3f);
  p = fma(p, r, broadcast(8.36874545e-3f));
  p = fma(p, r, broadcast(4.16683890e-2f));
  p = fma(p, r, broadcast(1.66665211e-1f));
  p = fma(p, r, broadcast(0.49999994f));
  const Floats y = 1.0f + fma(p, r * r, r);
  const Ints scaled = (Ints)((Words)y + ((Words)rounded << 23));
  return (Floats)(scaled & ~(x < -87.0f));
}

// 1 / (1 + e^-x), from e^-|x| so that nothing overflows.
LIGHTWELL_INLINE Floats sigmoid(Floats x) {
  const Floats e = exp(-(Floats)((Ints)x & 0x7FFFFFFF));
  return (x < 0.0f ? e : broadcast(1.0f)) / (1.0f + e);
}

// cap * tanh(x / cap), as tanh(u) = 2 sigmoid(2 u) - 1: within 2^-23 of the cap, which is what scores need.
LIGHTWELL_INLINE Floats soft_capped(Floats x, float cap) { return cap * (2.0f * sigmoid(x * (2.0f / cap)) - 1.0f); }

}  // namespace lightwell::LIGHTWELL_ISA
