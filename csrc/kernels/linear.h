// Linear layers: packed weights times int8 or float activations, and the reading of single rows. The includer has
// defined LIGHTWELL_ISA; its flags decide which arithmetic is compiled. Nothing here uses std templates or plain inline
// functions: the linker could keep the copy compiled for the widest instruction set for every CPU.
#pragma once

#include <cstdint>

#if defined(__AVX2__)
#pragma GCC diagnostic push  // GCC 12 warns of values that its own AVX-512 header leaves undefined on purpose
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#endif

#include "../kernels.h"
#include "packed.h"

#define LIGHTWELL_LINEAR static inline __attribute__((always_inline))

#if defined(__AVX512VNNI__)
#include "linear_avx512.h"
#elif defined(__AVX2__)
#include "linear_avx2.h"
#else
#include "linear_portable.h"
#endif

// These build on the arithmetic above, and on each other in this order.
#include "linear_blocks.h"
#include "linear_decode.h"
#include "linear_float.h"
#include "linear_int8.h"
#if defined(__AMX_INT8__)
#include "linear_amx.h"
#endif

namespace lightwell::LIGHTWELL_ISA {

template <Form form, bool has_minimum, bool nested>
static void multiply_integers(const Matrix& w, int64_t tile_begin, int64_t tile_end, const Quantized& a, int64_t rows,
                              const linear::Target& target) {
#if defined(__AMX_INT8__)
  linear::multiply_with_tiles<form, has_minimum, nested>(w, tile_begin, tile_end, a, rows, target);
#else
  linear::multiply_int8<form, has_minimum, nested>(w, tile_begin, tile_end, a, rows, target);
#endif
}

// For W4, W8 and W8H: plain weights have no integers to multiply.
static void linear_int8(const Matrix& w, int64_t tile_begin, int64_t tile_end, const Quantized& a, int64_t rows,
                        float* out, int64_t out_stride) {
  const linear::Target target = {out, out_stride, tile_begin};
  const bool four_bit = w.form == Form::W4, nested = w.span > 0;
  if (w.form == Form::W8H) multiply_integers<Form::W8H, false, true>(w, tile_begin, tile_end, a, rows, target);
  else if (four_bit && nested) multiply_integers<Form::W4, true, true>(w, tile_begin, tile_end, a, rows, target);
  else if (four_bit) multiply_integers<Form::W4, true, false>(w, tile_begin, tile_end, a, rows, target);
  else if (w.has_minimum && nested) multiply_integers<Form::W8, true, true>(w, tile_begin, tile_end, a, rows, target);
  else if (nested) multiply_integers<Form::W8, false, true>(w, tile_begin, tile_end, a, rows, target);
  else if (w.has_minimum) multiply_integers<Form::W8, true, false>(w, tile_begin, tile_end, a, rows, target);
  else multiply_integers<Form::W8, false, false>(w, tile_begin, tile_end, a, rows, target);
}

static void linear_float(const Matrix& w, int64_t tile_begin, int64_t tile_end, const float* x, int64_t x_stride,
                         int64_t rows, float* out, int64_t out_stride) {
  using namespace linear;
  const Target target = {out, out_stride, tile_begin};
  for (int64_t r = 0; r < rows; ++r) __builtin_memset(out + r * out_stride, 0, (tile_end - tile_begin) * kTile * 4);
  if (w.form == Form::BF16) multiply_plain<Form::BF16>(w, tile_begin, tile_end, x, x_stride, rows, target);
  else if (w.form == Form::F16) multiply_plain<Form::F16>(w, tile_begin, tile_end, x, x_stride, rows, target);
  else if (w.form == Form::F32) multiply_plain<Form::F32>(w, tile_begin, tile_end, x, x_stride, rows, target);
  else multiply_quantized(w, tile_begin, tile_end, x, x_stride, rows, target);
}

static void matrix_row(const Matrix& w, int64_t row, float* out) {
  for (int64_t g = 0; g < w.groups; ++g) {
    float values[kGroup];
    linear::decode_group(w, row / kTile, g, row % kTile, values, 1);
    const int64_t left = w.columns - g * kGroup;
    __builtin_memcpy(out + g * kGroup, values, (left < kGroup ? left : kGroup) * sizeof(float));
  }
}

}  // namespace lightwell::LIGHTWELL_ISA
