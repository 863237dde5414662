// Arithmetic on 16 outputs of a linear layer in plain C++, for a CPU of which nothing is known.
#pragma once

namespace lightwell::LIGHTWELL_ISA::linear {

// Tiles of a register block by its rows.
template <int Rows> constexpr int kIntTiles = 1;
template <int Rows> constexpr int kFloatTiles = 1;
constexpr int kFloatRows = 4;
constexpr int kStreams = 1;  // of weights for a single row

struct Floats {
  float lane[kTile];
};
struct Ints {
  int32_t lane[kTile];
};

LIGHTWELL_LINEAR Floats load(const float* p) {
  Floats x;
  for (int i = 0; i < kTile; ++i) x.lane[i] = p[i];
  return x;
}

LIGHTWELL_LINEAR void store(float* p, const Floats& x) {
  for (int i = 0; i < kTile; ++i) p[i] = x.lane[i];
}

LIGHTWELL_LINEAR Floats multiply(const Floats& x, float y) {
  Floats z;
  for (int i = 0; i < kTile; ++i) z.lane[i] = x.lane[i] * y;
  return z;
}

LIGHTWELL_LINEAR Floats multiply(const Floats& x, const Floats& y) {
  Floats z;
  for (int i = 0; i < kTile; ++i) z.lane[i] = x.lane[i] * y.lane[i];
  return z;
}

LIGHTWELL_LINEAR Floats multiply_add(const Floats& x, const Floats& y, const Floats& z) {
  Floats sum;
  for (int i = 0; i < kTile; ++i) sum.lane[i] = x.lane[i] * y.lane[i] + z.lane[i];
  return sum;
}

LIGHTWELL_LINEAR Floats multiply_add(const Floats& x, float y, const Floats& z) {
  Floats sum;
  for (int i = 0; i < kTile; ++i) sum.lane[i] = x.lane[i] * y + z.lane[i];
  return sum;
}

LIGHTWELL_LINEAR Floats to_float(const Ints& x) {
  Floats y;
  for (int i = 0; i < kTile; ++i) y.lane[i] = static_cast<float>(x.lane[i]);
  return y;
}

LIGHTWELL_LINEAR Floats load_half(const uint8_t* p) {
  Floats x;
  for (int i = 0; i < kTile; ++i) x.lane[i] = float_from_half(load_u16(p + 2 * i));
  return x;
}

// 16 signed bytes.
LIGHTWELL_LINEAR Floats load_small(const uint8_t* p) {
  Floats x;
  for (int i = 0; i < kTile; ++i) x.lane[i] = static_cast<int8_t>(p[i]);
  return x;
}

LIGHTWELL_LINEAR Floats load_bfloat(const uint8_t* p) {
  Floats x;
  for (int i = 0; i < kTile; ++i) x.lane[i] = float_from_bits(static_cast<uint32_t>(load_u16(p + 2 * i)) << 16);
  return x;
}

// The weights of part `part` of a group, row by row, as int16: compilers make dot products of these.
template <Form form, int columns>
LIGHTWELL_LINEAR void unpack_rows(const uint8_t* weights, int part, int16_t (&rows)[kTile][columns]) {
  constexpr int chunks = columns / kChunk;
  int8_t bytes[kTile][columns];
  for (int c = 0; c < chunks; ++c) {
    const int chunk = part * chunks + c;
    int8_t flat[kChunkBytes];
    for (int i = 0; i < kChunkBytes; ++i) {
      if constexpr (form == Form::W4) flat[i] = weights[chunk / 2 * kChunkBytes + i] >> (chunk % 2 * 4) & 15;
      else flat[i] = static_cast<int8_t>(weights[chunk * kChunkBytes + i]);
    }
    for (int i = 0; i < kTile; ++i) __builtin_memcpy(&bytes[i][c * kChunk], flat + i * kChunk, kChunk);
  }
  for (int i = 0; i < kTile; ++i)
    for (int c = 0; c < columns; ++c) rows[i][c] = bytes[i][c];
}

template <int columns>
LIGHTWELL_LINEAR int32_t dot_row(const int16_t (&x)[columns], const int16_t (&y)[columns]) {
  int32_t sum = 0;
#pragma GCC unroll 1  // whole, it would be unrolled before it becomes vector code
  for (int c = 0; c < columns; ++c) sum += x[c] * y[c];
  return sum;
}

// Integer products of part `part` of a group with rows a, a + stride, ...
template <Form form, bool has_minimum, int Rows>
LIGHTWELL_LINEAR void dot(const uint8_t* const (&weights)[1], int part, const int8_t* a, int64_t stride,
                          Ints (&sum)[1][Rows]) {
  constexpr int columns = kGroup / scale_parts(form);
  int16_t w[kTile][columns], x[columns];
  unpack_rows<form>(weights[0], part, w);
  for (int r = 0; r < Rows; ++r) {
    for (int c = 0; c < columns; ++c) x[c] = a[r * stride + part * columns + c];
    for (int i = 0; i < kTile; ++i) sum[0][r].lane[i] = dot_row(w[i], x);
  }
}

}  // namespace lightwell::LIGHTWELL_ISA::linear
