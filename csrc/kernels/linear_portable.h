// Arithmetic on 16 outputs of a linear layer in plain C++, for a CPU of which nothing is known.
#pragma once

namespace lightwell::LIGHTWELL_ISA::linear {

// Tiles of a register block by its rows.
template <int Rows> constexpr int kIntTiles = 1;
template <int Rows> constexpr int kFloatTiles = 1;
constexpr int kFloatRows = 4;
template <int Tiles> constexpr int64_t kPrefetchBytes = 0;

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

LIGHTWELL_LINEAR Floats load_bfloat(const uint8_t* p) {
  Floats x;
  for (int i = 0; i < kTile; ++i) x.lane[i] = float_from_bits(static_cast<uint32_t>(load_u16(p + 2 * i)) << 16);
  return x;
}

template <Form form>
LIGHTWELL_LINEAR int16_t weight_value(const uint8_t* weights, int chunk, int byte) {
  if constexpr (form == Form::W4) {
    const int pair = weights[chunk / 2 * kChunkBytes + byte];
    return chunk % 2 ? pair >> 4 : pair & 15;
  }
  return static_cast<int8_t>(weights[chunk * kChunkBytes + byte]);
}

// Integer products of part `part` of a group with rows a, a + stride, ...
template <Form form, bool has_minimum, int Rows>
LIGHTWELL_LINEAR void dot(const uint8_t* const (&weights)[1], int part, const int8_t* a, int64_t stride,
                          Ints (&sum)[1][Rows]) {
  constexpr int chunks = kChunks / scale_parts(form), columns = chunks * kChunk;
  int16_t rows[kTile][columns];  // row-major, so that compilers see a dot product of int16
  for (int i = 0; i < kTile; ++i)
    for (int c = 0; c < columns; ++c)
      rows[i][c] = weight_value<form>(weights[0], part * chunks + c / kChunk, i * kChunk + c % kChunk);
  for (int r = 0; r < Rows; ++r) {
    int16_t x[columns];
    for (int c = 0; c < columns; ++c) x[c] = a[r * stride + part * columns + c];
    for (int i = 0; i < kTile; ++i) {
      int32_t total = 0;
      for (int c = 0; c < columns; ++c) total += rows[i][c] * x[c];
      sum[0][r].lane[i] = total;
    }
  }
}

}  // namespace lightwell::LIGHTWELL_ISA::linear
