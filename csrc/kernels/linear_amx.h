// Products with int8 activations of many rows, by AMX: one instruction gives the exact integer sums of a group (or half
// group) for 16 rows and the 16 outputs of a weight tile. What follows is what linear_int8.h does, in its order, so the
// bits are the same.
#pragma once

#include "../tile_shapes.h"

namespace lightwell::LIGHTWELL_ISA::linear {

constexpr int64_t kRegisterRows = 16;  // rows of activations in a tile register
constexpr int64_t kLeastRows = 24;     // from which on AMX is faster
constexpr int64_t kFewRows = 12;       // fewer of a last block are left to vectors: it costs as much as a full one
constexpr int64_t kRowBlocks = 4;      // that share unpacked weights
constexpr int64_t kStrip = 32;         // groups that are unpacked together: they stay in the nearest caches
constexpr int64_t kRing = 4;           // sums on their way from tile registers to vectors
constexpr int64_t kLag = 2;            // steps from storing sums to adding them up: read at once, they would be waited for

// Register 0 holds sums, 1 activations, 2 weights.
template <Form form>
LIGHTWELL_LINEAR void configure() {
  constexpr uint8_t chunks = kChunks / scale_parts(form);
  TileShapes shapes = {};
  shapes.palette = 1;
  shapes.rows[0] = shapes.rows[1] = kRegisterRows;
  shapes.row_bytes[0] = kFloatBytes;
  shapes.row_bytes[1] = chunks * kChunk;
  shapes.rows[2] = chunks;
  shapes.row_bytes[2] = kChunkBytes;
  LIGHTWELL_LOAD_SHAPES(shapes);
}

// A strip of up to 16 rows: their values, and their scales and sums as [group][row].
struct RowBlock {
  int64_t rows;
  const int8_t* values;
  int64_t stride;
  float scales[kStrip][kRegisterRows], sums[kStrip][kRegisterRows];
};

// out[g][r] = x[r * stride + g], zero from `rows` on.
LIGHTWELL_LINEAR void transpose(const float* x, int64_t stride, int64_t rows, int64_t count,
                                float (&out)[kStrip][kRegisterRows]) {
  alignas(16) static constexpr float none[kStrip] = {};
  for (int64_t r = 0; r < kRegisterRows; r += 4) {
    const float* row[4];
    for (int64_t i = 0; i < 4; ++i) row[i] = r + i < rows ? x + (r + i) * stride : none;
    int64_t g = 0;
    for (; g + 4 <= count; g += 4) {
      __m128 a = _mm_loadu_ps(row[0] + g), b = _mm_loadu_ps(row[1] + g);
      __m128 c = _mm_loadu_ps(row[2] + g), d = _mm_loadu_ps(row[3] + g);
      _MM_TRANSPOSE4_PS(a, b, c, d);
      _mm_storeu_ps(&out[g][r], a);
      _mm_storeu_ps(&out[g + 1][r], b);
      _mm_storeu_ps(&out[g + 2][r], c);
      _mm_storeu_ps(&out[g + 3][r], d);
    }
    for (; g < count; ++g)
      for (int64_t i = 0; i < 4; ++i) out[g][r + i] = row[i][g];
  }
}

// `padded` has room for the values of a block that is not full: registers are always loaded whole.
LIGHTWELL_LINEAR void gather(const Quantized& a, int64_t row, int64_t rows, int64_t first, int64_t count, int8_t* padded,
                             RowBlock& block) {
  block.rows = rows < kRegisterRows ? rows : kRegisterRows;
  block.stride = a.groups * kGroup;
  block.values = a.values + row * block.stride + first * kGroup;
  if (block.rows < kRegisterRows) {
    for (int64_t r = 0; r < block.rows; ++r)
      __builtin_memcpy(padded + r * kStrip * kGroup, block.values + r * block.stride, count * kGroup);
    block.values = padded;
    block.stride = kStrip * kGroup;
  }
  transpose(a.scales + row * a.groups + first, a.groups, block.rows, count, block.scales);
  transpose(a.sums + row * a.groups + first, a.groups, block.rows, count, block.sums);
}

// A strip of a tile: for each group its weights as bytes, chunk after chunk, and its scales and minimums as floats.
template <Form form, bool has_minimum, bool nested>
struct Strip {
  const uint8_t* weights[kStrip];
  float scales[kStrip][scale_parts(form) + has_minimum][kTile];
  alignas(64) uint8_t bytes[form == Form::W4 ? kStrip : 1][kChunks * kChunkBytes];
};

template <Form form, bool has_minimum, bool nested>
LIGHTWELL_LINEAR void unpack(const Matrix& w, int64_t tile, int64_t first, int64_t count,
                             Strip<form, has_minimum, nested>& strip) {
  const uint8_t *data = w.data + tile * w.tile_bytes, *multipliers = nullptr, *group = data + group_offset(w, first);
  int64_t left = 0;  // groups under the same multipliers
  if constexpr (nested) {
    multipliers = data + span_offset(w, first);
    left = w.span - first % w.span;
  }
  for (int64_t g = 0; g < count; ++g) {
    if (nested && left-- == 0) {
      multipliers = group;
      group += multiplier_bytes(has_minimum);
      left = w.span - 1;
    }
    for (int part = 0; part < scale_parts(form) + has_minimum; ++part)
      store(strip.scales[g][part], load_scales<form, nested>(group, multipliers, part));
    strip.weights[g] = form == Form::W4 ? strip.bytes[g] : group;
    if constexpr (form == Form::W4) {
#pragma GCC unroll 8
      for (int c = 0; c < kChunks; ++c)
        _mm512_store_si512(strip.bytes[g] + c * kChunkBytes, load_chunk<form, has_minimum>(group, c));
    }
    group += group_bytes(form, has_minimum, nested);
  }
  __asm__ volatile("" : : : "memory");  // GCC does not know that loads of tile registers read memory
}

// Four rows' sums of a step, scaled and added up. The empty assembly keeps their loads where they stand among the
// instructions of tiles, which run beside them.
template <bool has_minimum, int begin>
LIGHTWELL_LINEAR void add_rows(const int32_t (&sums)[kRegisterRows][kTile], Floats scale, Floats minimum,
                               const float* value_scales, const float* value_sums, Floats (&total)[kRegisterRows]) {
#pragma GCC unroll 4
  for (int r = begin; r < begin + 4; ++r) {
    const Floats sum = to_float(_mm512_load_si512(sums[r]));
    total[r] = multiply_add(sum, multiply(scale, value_scales[r]), total[r]);
    if constexpr (has_minimum) total[r] = multiply_add(minimum, value_sums[r], total[r]);
    __asm__ volatile("" : : : "memory");
  }
}

// One strip of a tile for all blocks of rows, a step for each part of a group: adds to `out`, from zero at the first strip.
// While the sums of one step are added up, those of a later one are stored, and one after that is multiplied.
template <Form form, bool has_minimum, bool nested>
static void run_strip(const Strip<form, has_minimum, nested>& strip, const RowBlock* blocks, int64_t block_count,
                      int64_t count, bool first, float* out, int64_t out_stride) {
  constexpr int64_t parts = scale_parts(form), chunks = kChunks / parts;
  alignas(64) int32_t sums[kRing][kRegisterRows][kTile];
  Floats total[kRegisterRows];
  const int64_t steps = count * parts, all = block_count * steps;
  const RowBlock *loaded = blocks, *added = blocks;
  int64_t load_step = 0, add_step = 0;  // of that block
  _tile_loadd(2, strip.weights[0], kChunkBytes);
  _tile_loadd(1, loaded->values, loaded->stride);
  _tile_zero(0);
  _tile_dpbssd(0, 1, 2);
  for (int64_t step = 0; step < all + kLag; ++step) {
    if (++load_step == steps) {
      load_step = 0;
      loaded += loaded + 1 < blocks + block_count;  // past the last one its values are loaded again, for nothing
    }
    const uint8_t* weights = strip.weights[load_step / parts] + load_step % parts * chunks * kChunkBytes;
    const int8_t* values = loaded->values + load_step * chunks * kChunk;
    if (step < kLag) {
      _tile_loadd(2, weights, kChunkBytes);
      _tile_loadd(1, values, loaded->stride);
      _tile_stored(0, sums[step % kRing][0], kFloatBytes);
      _tile_zero(0);
      _tile_dpbssd(0, 1, 2);
      continue;
    }
    if (add_step == 0) {
#pragma GCC unroll 16
      for (int r = 0; r < kRegisterRows; ++r)
        total[r] = first || r >= added->rows ? Floats{} : load(out + r * out_stride);
    }
    const auto& done = sums[(step - kLag) % kRing];
    const int64_t group = add_step / parts;
    const Floats scale = load(strip.scales[group][add_step % parts]);
    const Floats minimum = load(strip.scales[group][parts - 1 + has_minimum]);
    add_rows<has_minimum, 0>(done, scale, minimum, added->scales[group], added->sums[group], total);
    _tile_loadd(2, weights, kChunkBytes);
    add_rows<has_minimum, 4>(done, scale, minimum, added->scales[group], added->sums[group], total);
    _tile_loadd(1, values, loaded->stride);
    add_rows<has_minimum, 8>(done, scale, minimum, added->scales[group], added->sums[group], total);
    _tile_stored(0, sums[step % kRing][0], kFloatBytes);
    add_rows<has_minimum, 12>(done, scale, minimum, added->scales[group], added->sums[group], total);
    _tile_zero(0);
    _tile_dpbssd(0, 1, 2);
    if (++add_step == steps) {
#pragma GCC unroll 16
      for (int r = 0; r < kRegisterRows; ++r)
        if (r < added->rows) store(out + r * out_stride, total[r]);
      add_step = 0;
      ++added;
      out += kRegisterRows * out_stride;
    }
  }
}

// Rows [row, row + rows), at most kRowBlocks blocks, against tiles [tile_begin, tile_end).
template <Form form, bool has_minimum, bool nested>
static void multiply_blocks(const Matrix& w, int64_t tile_begin, int64_t tile_end, const Quantized& a, int64_t row,
                            int64_t rows, const Target& target) {
  Strip<form, has_minimum, nested> strip;
  RowBlock blocks[kRowBlocks];
  alignas(64) int8_t padded[kRegisterRows * kStrip * kGroup];
  const int64_t block_count = (rows + kRegisterRows - 1) / kRegisterRows;
  for (int64_t first = 0; first < w.groups; first += kStrip) {
    const int64_t count = first + kStrip < w.groups ? kStrip : w.groups - first;
    for (int64_t b = 0; b < block_count; ++b)
      gather(a, row + b * kRegisterRows, rows - b * kRegisterRows, first, count, padded, blocks[b]);
    for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
      unpack(w, tile, first, count, strip);
      run_strip(strip, blocks, block_count, count, first == 0, target.at(row, tile), target.stride);
    }
  }
}

// The first rows by AMX, as far as it pays, and the others by vectors.
template <Form form, bool has_minimum, bool nested>
static void multiply_with_tiles(const Matrix& w, int64_t tile_begin, int64_t tile_end, const Quantized& a, int64_t rows,
                                const Target& target) {
  const int64_t rest = rows % kRegisterRows, done = rows < kLeastRows ? 0 : rest < kFewRows ? rows - rest : rows;
  if (done) {
    constexpr int64_t most = kRowBlocks * kRegisterRows;
    configure<form>();
    for (int64_t row = 0; row < done; row += most)
      multiply_blocks<form, has_minimum, nested>(w, tile_begin, tile_end, a, row, row + most < done ? most : done - row,
                                                 target);
    _tile_release();
  }
  if (done == rows) return;
  const int64_t groups = done * a.groups;
  multiply_int8<form, has_minimum, nested>(w, tile_begin, tile_end,
                                           {a.values + groups * kGroup, a.scales + groups, a.sums + groups, a.groups},
                                           rows - done, {target.out + done * target.stride, target.stride, tile_begin});
}

}  // namespace lightwell::LIGHTWELL_ISA::linear
