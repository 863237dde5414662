// Products with float activations: one fused sum over the columns in ascending order. Plain weights are widened as they
// are loaded. Quantized ones become floats a group at a time: exact activations to compare with, not meant to be fast.
#pragma once

namespace lightwell::LIGHTWELL_ISA::linear {

template <Form form>
LIGHTWELL_LINEAR Floats load_weights(const uint8_t* p) {
  if constexpr (form == Form::BF16) return load_bfloat(p);
  if constexpr (form == Form::F16) return load_half(p);
  return load(reinterpret_cast<const float*>(p));
}

// target += plain weights times x.
template <Form form>
struct FloatBlock {
  static constexpr int kRows = kFloatRows;
  template <int Rows> static constexpr int tiles() { return kFloatTiles<Rows>; }

  const uint8_t* weights;
  int64_t tile_bytes, columns;
  const float* x;
  int64_t x_stride;
  Target target;

  template <int Rows, int Tiles>
  void run(int64_t row, int64_t tile, int64_t apart = 1) const {
    constexpr int64_t bytes = kTile * element_bytes(form);
    const float* rows = x + row * x_stride;
    const uint8_t* column[Tiles];
    Floats total[Tiles][Rows];
    for (int t = 0; t < Tiles; ++t) {
      column[t] = weights + (tile + t * apart) * tile_bytes;
      for (int r = 0; r < Rows; ++r) total[t][r] = load(target.at(row + r, tile + t * apart));
    }
    for (int64_t c = 0; c < columns; ++c) {
      if (row == 0 && apart == 1) prefetch(column, bytes, tile_bytes);
#pragma GCC unroll 4
      for (int t = 0; t < Tiles; ++t) {
        const Floats w = load_weights<form>(column[t]);
#pragma GCC unroll 6
        for (int r = 0; r < Rows; ++r) total[t][r] = multiply_add(w, rows[r * x_stride + c], total[t][r]);
        column[t] += bytes;
      }
    }
    for (int t = 0; t < Tiles; ++t)
      for (int r = 0; r < Rows; ++r) store(target.at(row + r, tile + t * apart), total[t][r]);
  }
};

template <Form form>
static void multiply_plain(const Matrix& w, int64_t tile_begin, int64_t tile_end, const float* x, int64_t x_stride,
                           int64_t rows, const Target& target) {
  const FloatBlock<form> block = {w.data, w.tile_bytes, w.groups * kGroup, x, x_stride, target};
  run_blocks(block, rows, tile_begin, tile_end);
}

static void multiply_quantized(const Matrix& w, int64_t tile_begin, int64_t tile_end, const float* x, int64_t x_stride,
                               int64_t rows, const Target& target) {
  alignas(64) float weights[kGroup * kTile];
  const uint8_t* bytes = reinterpret_cast<const uint8_t*>(weights);
  for (int64_t t = tile_begin; t < tile_end; ++t)
    for (int64_t g = 0; g < w.groups; ++g) {
      for (int64_t lane = 0; lane < kTile; ++lane) decode_group(w, t, g, lane, weights + lane, kTile);
      const FloatBlock<Form::F32> block = {bytes, 0, kGroup, x + g * kGroup, x_stride, target};
      run_blocks(block, rows, t, t + 1);
    }
}

}  // namespace lightwell::LIGHTWELL_ISA::linear
