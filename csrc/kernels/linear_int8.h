// Products with int8 activations. Inside a group (or half group) the sum is an exact integer; an output then adds up
// its groups in ascending order, whatever rows and tiles are computed together.
#pragma once

namespace lightwell::LIGHTWELL_ISA::linear {

// The scales of part `part` of a group, or its minimums where `part` is the number of parts.
template <Form form, bool nested>
LIGHTWELL_LINEAR Floats load_scales(const uint8_t* group, const uint8_t* multipliers, int part) {
  const uint8_t* scales = group + weight_bytes(form) + part * scale_bytes(nested);
  if constexpr (!nested) return load_half(scales);
  const int64_t floats = part / scale_parts(form) * kTile;
  return multiply(load_small(scales), load(reinterpret_cast<const float*>(multipliers) + floats));
}

// total = scale * a_scale * sum + total for each part of the group, then + minimum * a_sum.
template <Form form, bool has_minimum, bool nested, int Rows, int Tiles>
LIGHTWELL_LINEAR void add_group(const Quantized& a, int64_t row, int64_t g, const uint8_t* const (&group)[Tiles],
                                const uint8_t* const (&multipliers)[Tiles], Floats (&total)[Tiles][Rows]) {
  constexpr int parts = scale_parts(form);
#pragma GCC unroll 2
  for (int part = 0; part < parts; ++part) {
    Ints sum[Tiles][Rows];
    dot<form, has_minimum>(group, part, a.values + (row * a.groups + g) * kGroup, a.groups * kGroup, sum);
#pragma GCC unroll 4
    for (int t = 0; t < Tiles; ++t) {
      const Floats scale = load_scales<form, nested>(group[t], multipliers[t], part);
      const Floats minimum = has_minimum ? load_scales<form, nested>(group[t], multipliers[t], parts) : Floats{};
#pragma GCC unroll 4
      for (int r = 0; r < Rows; ++r) {
        const int64_t i = (row + r) * a.groups + g;
        total[t][r] = multiply_add(to_float(sum[t][r]), multiply(scale, a.scales[i]), total[t][r]);
        if constexpr (has_minimum) total[t][r] = multiply_add(minimum, a.sums[i], total[t][r]);
      }
    }
  }
}

template <Form form, bool has_minimum, bool nested>
struct IntBlock {
  static constexpr int kRows = 4;
  template <int Rows> static constexpr int tiles() { return kIntTiles<Rows>; }

  const Matrix& w;
  const Quantized& a;
  Target target;

  template <int Rows, int Tiles>
  void run(int64_t row, int64_t tile, int64_t apart = 1) const {
    constexpr int64_t bytes = group_bytes(form, has_minimum, nested);
    const uint8_t *group[Tiles], *multipliers[Tiles] = {};
    Floats total[Tiles][Rows] = {};
    for (int t = 0; t < Tiles; ++t) group[t] = w.data + (tile + t * apart) * w.tile_bytes;
    int64_t next_span = 0;
    for (int64_t g = 0; g < w.groups; ++g) {
      if (nested && g == next_span) {
        if (row == 0 && apart == 1) prefetch(group, multiplier_bytes(has_minimum), w.tile_bytes);
        for (int t = 0; t < Tiles; ++t) {
          multipliers[t] = group[t];
          group[t] += multiplier_bytes(has_minimum);
        }
        next_span += w.span;
      }
      if (row == 0 && apart == 1) prefetch(group, bytes, w.tile_bytes);
      add_group<form, has_minimum, nested>(a, row, g, group, multipliers, total);
      for (int t = 0; t < Tiles; ++t) group[t] += bytes;
    }
    for (int t = 0; t < Tiles; ++t)
      for (int r = 0; r < Rows; ++r) store(target.at(row + r, tile + t * apart), total[t][r]);
  }
};

template <Form form, bool has_minimum, bool nested>
static void multiply_int8(const Matrix& w, int64_t tile_begin, int64_t tile_end, const Quantized& a, int64_t rows,
                          const Target& target) {
  run_blocks(IntBlock<form, has_minimum, nested>{w, a, target}, rows, tile_begin, tile_end);
}

}  // namespace lightwell::LIGHTWELL_ISA::linear
