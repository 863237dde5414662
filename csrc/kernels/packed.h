// The bytes of packed weights, one layout for every instruction set. A tile is kTile rows; it lies group after group of
// kGroup columns, so that reading a tile is one sequential stream. A quantized group is
//   weights   chunks of 4 columns: 16 rows x 4 bytes = 64 bytes, so that one broadcast of 4 activations meets 16 rows.
//             W8, W8H: chunks 0..7 of one byte a weight.
//             W4: 4 x 64 bytes; the low nibbles of part j are chunk 2j, the high nibbles chunk 2j + 1.
//   scales    16 fp16, one a row
//   minimums  16 fp16, where there are minimums
// and a weight is scale * value + minimum. Nested scales and minimums are int8 instead (W8H: 16 scales for columns
// 0..15, then 16 for columns 16..31), and before each span of groups lie
//   multipliers  16 floats for the scales, then, where there are minimums, 16 for those.
// So what a K format stores as a product of a small integer and an fp16 is kept exactly, in fewer bytes.
// Values are 0..15 in W4, 0..31 in W8 with minimums, any signed byte in W8 without, and -32..31 in W8H: sums of
// products in int16 lanes rely on it.
// A plain group is 32 columns of 16 elements, one a row.
#pragma once

#include <cstdint>

#include "../kernels.h"

namespace lightwell {

// Packed weights are kept on disk (runtimes/cpu/pack_cache.py). Raise this with every change after which the same bytes
// of a model file would be packed into other bytes: of the layout above, of a form, or of how pack.cpp reads a format.
constexpr int kPackingVersion = 1;

constexpr int64_t kChunk = 4;
constexpr int64_t kChunks = kGroup / kChunk;
constexpr int64_t kChunkBytes = kTile * kChunk;
constexpr int64_t kFloatBytes = kTile * 4;

static constexpr bool is_plain(Form form) { return form == Form::BF16 || form == Form::F16 || form == Form::F32; }

static constexpr int64_t element_bytes(Form form) { return form == Form::F32 ? 4 : is_plain(form) ? 2 : 1; }

// Bytes of a group's weights; its scales come next.
static constexpr int64_t weight_bytes(Form form) {
  return form == Form::W4 ? kChunks / 2 * kChunkBytes : kChunks * kChunkBytes * element_bytes(form);
}

// Parts of a group that have a scale of their own.
static constexpr int64_t scale_parts(Form form) { return is_plain(form) ? 0 : form == Form::W8H ? 2 : 1; }

// Bytes of a row of 16 scales or minimums.
static constexpr int64_t scale_bytes(bool nested) { return nested ? kTile : kTile * 2; }

// A multiple of 32, as vector loads like it.
static constexpr int64_t group_bytes(Form form, bool has_minimum, bool nested) {
  return (weight_bytes(form) + (scale_parts(form) + has_minimum) * scale_bytes(nested) + 31) / 32 * 32;
}

static constexpr int64_t multiplier_bytes(bool has_minimum) { return (1 + has_minimum) * kFloatBytes; }

// Where in a tile the multipliers for group g lie, if its scales are nested.
static inline int64_t span_offset(const Matrix& w, int64_t g) {
  return g / w.span * (w.span * group_bytes(w.form, w.has_minimum, true) + multiplier_bytes(w.has_minimum));
}

static inline int64_t group_offset(const Matrix& w, int64_t g) {
  const int64_t bytes = group_bytes(w.form, w.has_minimum, w.span > 0);
  return w.span ? span_offset(w, g) + multiplier_bytes(w.has_minimum) + g % w.span * bytes : g * bytes;
}

static inline float float_from_bits(uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, 4);
  return value;
}

static inline uint32_t bits_of_float(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, 4);
  return bits;
}

static inline uint16_t load_u16(const uint8_t* p) {
  uint16_t value;
  __builtin_memcpy(&value, p, 2);
  return value;
}

// Exact. A subnormal is its integer times 2^-24. Without branches, so that loops over it become vector code.
static inline float float_from_half(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16, magnitude = half & 0x7fff;
  const uint32_t normal = (magnitude << 13) + (magnitude < 0x7c00 ? (127u - 15) << 23 : (255u - 31) << 23);
  const uint32_t subnormal = bits_of_float(static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f);
  return float_from_bits(sign | (magnitude < 0x400 ? subnormal : normal));
}

// To nearest, ties to even, as IEEE 754 converts; beyond 65,504 infinity.
static inline uint16_t half_from_float(float value) {
  const uint32_t bits = bits_of_float(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return sign | 0x7e00;                   // not a number
  if (magnitude >= bits_of_float(65520.0f)) return sign | 0x7c00;     // would round up to 2^16
  if (magnitude < bits_of_float(0x1p-14f)) {                          // subnormal: float addition rounds at 2^-24
    const float rounded = float_from_bits(magnitude) + 0.5f;
    return sign | (bits_of_float(rounded) - bits_of_float(0.5f));
  }
  const uint32_t rebiased = magnitude - (112u << 23);
  return sign | (rebiased + 0xfff + (rebiased >> 13 & 1)) >> 13;
}

}  // namespace lightwell
