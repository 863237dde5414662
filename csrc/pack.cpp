// Turns tensors as files store them into packed matrices. The file formats are those of GGUF: blocks of 32 columns with
// an fp16 scale (Q4_0 ... Q8_0, IQ4_NL) or a power of two (MXFP4), or of 256 columns whose groups have small scales of
// their own (Q4_K, Q5_K, Q6_K); and our own INT4_* and INT8_* (checkpoints/tensor.py), blocks of 32 columns of which
// one, two, four or all in a row have the same scale.
// Every weight is exactly what the file means: a K format's scale, a small integer times an fp16, stays in two parts.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <stdexcept>

#include "kernels.h"
#include "kernels/packed.h"
#include "packed_matrix.h"
#include "weight_memory.h"

namespace lightwell {
namespace {

// One row of a group: a weight is scale[c / 16] * value[c] + minimum; where scales are nested, these are int8 and still
// to be multiplied.
struct Group {
  int8_t value[kGroup];
  float scale[2];
  float minimum;
  float scale_multiplier, minimum_multiplier;

  void set(float both, float least) {
    scale[0] = scale[1] = both;
    minimum = least;
  }

  void set_multipliers(float of_scales, float of_minimum) {
    scale_multiplier = of_scales;
    minimum_multiplier = of_minimum;
  }
};

float half_at(const uint8_t* p) { return float_from_half(load_u16(p)); }

// Nibbles of 32 columns in 16 bytes: columns 0..15 are the low ones.
void read_nibbles(const uint8_t* bytes, Group& group) {
  for (int i = 0; i < 16; ++i) {
    group.value[i] = bytes[i] & 15;
    group.value[i + 16] = bytes[i] >> 4;
  }
}

// A fifth bit for each column, from a little-endian word.
void add_high_bits(const uint8_t* word, Group& group) {
  for (int i = 0; i < kGroup; ++i) group.value[i] |= (word[i / 8] >> i % 8 & 1) << 4;
}

void read_q4_0(const uint8_t* row, int64_t g, Group& group) {
  const uint8_t* block = row + g * 18;
  read_nibbles(block + 2, group);
  group.set(half_at(block), -8 * half_at(block));
}

void read_q4_1(const uint8_t* row, int64_t g, Group& group) {
  const uint8_t* block = row + g * 20;
  read_nibbles(block + 4, group);
  group.set(half_at(block), half_at(block + 2));
}

void read_q5_0(const uint8_t* row, int64_t g, Group& group) {
  const uint8_t* block = row + g * 22;
  read_nibbles(block + 6, group);
  add_high_bits(block + 2, group);
  group.set(half_at(block), -16 * half_at(block));
}

void read_q5_1(const uint8_t* row, int64_t g, Group& group) {
  const uint8_t* block = row + g * 24;
  read_nibbles(block + 8, group);
  add_high_bits(block + 4, group);
  group.set(half_at(block), half_at(block + 2));
}

void read_q8_0(const uint8_t* row, int64_t g, Group& group) {
  const uint8_t* block = row + g * 34;
  std::memcpy(group.value, block + 2, kGroup);
  group.set(half_at(block), 0);
}

// Scale and minimum of group i of 8: six bits each in 12 bytes. Groups 0..3 lie in bytes 0..3 and 4..7; the others have
// their low four bits in bytes 8..11 and their high two on top of the former.
void set_six_bit(const uint8_t* block, int i, Group& group) {
  const uint8_t* bytes = block + 4;
  const int low = bytes[i % 4], high = bytes[i % 4 + 4];
  const int scale = i < 4 ? low & 63 : (bytes[i + 4] & 15) | low >> 6 << 4;
  const int minimum = i < 4 ? high & 63 : bytes[i + 4] >> 4 | high >> 6 << 4;
  group.set(scale, minimum);
  group.set_multipliers(half_at(block), -half_at(block + 2));
}

// Groups 2i and 2i + 1 are the low and the high nibbles of the same 32 bytes.
void read_paired_nibbles(const uint8_t* bytes, int i, Group& group) {
  for (int c = 0; c < kGroup; ++c) group.value[c] = (bytes[i / 2 * kGroup + c] >> (i % 2 * 4)) & 15;
}

void read_q4_k(const uint8_t* row, int64_t g, Group& group) {
  const uint8_t* block = row + g / 8 * 144;
  const int i = static_cast<int>(g % 8);
  read_paired_nibbles(block + 16, i, group);
  set_six_bit(block, i, group);
}

void read_q5_k(const uint8_t* row, int64_t g, Group& group) {
  const uint8_t* block = row + g / 8 * 176;
  const int i = static_cast<int>(g % 8);
  read_paired_nibbles(block + 48, i, group);
  for (int c = 0; c < kGroup; ++c) group.value[c] |= (block[16 + c] >> i & 1) << 4;  // bit i of byte c is group i's
  set_six_bit(block, i, group);
}

// Each half of 128 columns has 64 bytes of low nibbles and 32 bytes of high bit pairs. Of its four groups, 0 and 1 are
// the low nibbles of bytes 0..31 and 32..63, 2 and 3 the high ones; group q has bits 2q and 2q + 1 of the pairs.
void read_q6_k(const uint8_t* row, int64_t g, Group& group) {
  const uint8_t* block = row + g / 8 * 210;
  const int i = static_cast<int>(g % 8), half = i / 4, quarter = i % 4;
  const uint8_t* low = block + half * 64 + quarter % 2 * kGroup;
  const uint8_t* high = block + 128 + half * kGroup;
  for (int c = 0; c < kGroup; ++c) {
    const int six_bits = (low[c] >> (quarter / 2 * 4) & 15) | (high[c] >> (quarter * 2) & 3) << 4;
    group.value[c] = static_cast<int8_t>(six_bits - 32);
  }
  for (int part = 0; part < 2; ++part) group.scale[part] = static_cast<int8_t>(block[192 + 2 * i + part]);
  group.set_multipliers(half_at(block + 208), 0);
}

// The 16 values of IQ4_NL, and twice those of MXFP4 (halves of 0, 1, 2, 3, 4, 6, 8 and 12, then the same below zero).
constexpr int8_t kIq4Values[] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr int8_t kMxfp4Values[] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

void look_up(const int8_t (&values)[16], Group& group) {
  for (int8_t& value : group.value) value = values[value];
}

void read_iq4_nl(const uint8_t* row, int64_t g, Group& group) {
  const uint8_t* block = row + g * 18;
  read_nibbles(block + 2, group);
  look_up(kIq4Values, group);
  group.set(half_at(block), 0);
}

// The scale is a power of two, 2^(byte - 127), and must be one that fp16 has; where all values are 0 it says nothing.
void read_mxfp4(const uint8_t* row, int64_t g, Group& group) {
  const uint8_t* block = row + g * 17;
  read_nibbles(block + 1, group);
  look_up(kMxfp4Values, group);
  const int exponent = block[0] - 128;
  const bool zero = std::all_of(std::begin(group.value), std::end(group.value), [](int8_t x) { return x == 0; });
  if (!zero && (exponent < -24 || exponent > 15))
    throw std::invalid_argument("a block has the exponent " + std::to_string(block[0]) +
                                "; those from 104 to 143 are supported");
  group.set(zero ? 0.0f : std::ldexp(1.0f, exponent), 0);
}

float float_at(const uint8_t* p) {
  float value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

// INT4_*: scale * (value - zero), a float, a byte and 16 bytes of nibbles.
void read_int4(const uint8_t* row, int64_t g, Group& group) {
  const uint8_t* block = row + g * 21;
  read_nibbles(block + 5, group);
  group.set(1, block[4]);
  group.set_multipliers(float_at(block), -float_at(block));
}

// INT8_*: scale * value, a float and 32 signed bytes.
void read_int8(const uint8_t* row, int64_t g, Group& group) {
  const uint8_t* block = row + g * 36;
  std::memcpy(group.value, block + 4, kGroup);
  group.set(1, 0);
  group.set_multipliers(float_at(block), 0);
}

using Read = void (*)(const uint8_t* row, int64_t group, Group& out);

constexpr int64_t kWholeRow = -1;

struct Format {
  const char* name;
  int64_t block_columns, block_bytes;
  Form form;
  bool has_minimum;
  int64_t span;  // groups under the same multipliers: kWholeRow for all, 0 where scales are not nested
  Read read;     // null for plain formats
};

constexpr Format kFormats[] = {
    {"F32", 1, 4, Form::F32, false, 0, nullptr},      {"F16", 1, 2, Form::F16, false, 0, nullptr},
    {"BF16", 1, 2, Form::BF16, false, 0, nullptr},    {"Q4_0", 32, 18, Form::W4, true, 0, read_q4_0},
    {"Q4_1", 32, 20, Form::W4, true, 0, read_q4_1},   {"Q5_0", 32, 22, Form::W8, true, 0, read_q5_0},
    {"Q5_1", 32, 24, Form::W8, true, 0, read_q5_1},   {"Q8_0", 32, 34, Form::W8, false, 0, read_q8_0},
    {"Q4_K", 256, 144, Form::W4, true, 8, read_q4_k}, {"Q5_K", 256, 176, Form::W8, true, 8, read_q5_k},
    {"Q6_K", 256, 210, Form::W8H, false, 8, read_q6_k},
    {"IQ4_NL", 32, 18, Form::W8, false, 0, read_iq4_nl},
    {"MXFP4", 32, 17, Form::W8, false, 0, read_mxfp4},
    {"INT4_32", 32, 21, Form::W4, true, 1, read_int4},
    {"INT4_64", 32, 21, Form::W4, true, 2, read_int4},
    {"INT4_128", 32, 21, Form::W4, true, 4, read_int4},
    {"INT4_ROW", 32, 21, Form::W4, true, kWholeRow, read_int4},
    {"INT8_32", 32, 36, Form::W8, false, 1, read_int8},
    {"INT8_64", 32, 36, Form::W8, false, 2, read_int8},
    {"INT8_128", 32, 36, Form::W8, false, 4, read_int8},
    {"INT8_ROW", 32, 36, Form::W8, false, kWholeRow, read_int8},
};

const Format* find_format(const char* name) {
  for (const Format& format : kFormats)
    if (std::strcmp(format.name, name) == 0) return &format;
  return nullptr;
}

void store_half(uint8_t* p, float value) {
  const uint16_t half = half_from_float(value);
  std::memcpy(p, &half, 2);
}

void put_scale(uint8_t* scales, bool nested, int64_t lane, float value) {
  if (nested) scales[lane] = static_cast<uint8_t>(static_cast<int8_t>(value));
  else store_half(scales + 2 * lane, value);
}

void put_multipliers(const Group& group, bool has_minimum, int64_t lane, uint8_t* out) {
  std::memcpy(out + 4 * lane, &group.scale_multiplier, 4);
  if (has_minimum) std::memcpy(out + kFloatBytes + 4 * lane, &group.minimum_multiplier, 4);
}

// Write one row of a group into its lane of the packed group.
void put_group(const Group& group, const Matrix& layout, int64_t lane, uint8_t* out) {
  for (int64_t chunk = 0; chunk < kChunks; ++chunk)
    for (int64_t i = 0; i < kChunk; ++i) {
      const uint8_t value = static_cast<uint8_t>(group.value[chunk * kChunk + i]);
      if (layout.form == Form::W4) out[chunk / 2 * kChunkBytes + lane * kChunk + i] |= value << (chunk % 2 * 4);
      else out[chunk * kChunkBytes + lane * kChunk + i] = value;
    }
  const bool nested = layout.span > 0;
  const int64_t parts = scale_parts(layout.form), bytes = scale_bytes(nested);
  uint8_t* scales = out + weight_bytes(layout.form);
  for (int64_t part = 0; part < parts; ++part) put_scale(scales + part * bytes, nested, lane, group.scale[part]);
  if (layout.has_minimum) put_scale(scales + parts * bytes, nested, lane, group.minimum);
}

// The tile's data is zero before; so is what is past the last row.
void pack_quantized(const Format& format, const uint8_t* source, const Matrix& layout, uint8_t* out, int64_t tile) {
  const int64_t row_bytes = source_row_bytes(format.name, layout.columns);
  Group group;
  for (int64_t lane = 0; lane < kTile && tile * kTile + lane < layout.rows; ++lane)
    for (int64_t g = 0; g < layout.groups; ++g) {
      format.read(source + (tile * kTile + lane) * row_bytes, g, group);
      put_group(group, layout, lane, out + group_offset(layout, g));
      if (layout.span) put_multipliers(group, layout.has_minimum, lane, out + span_offset(layout, g));
    }
}

template <typename Element>
void pack_plain(const uint8_t* source, const Matrix& layout, uint8_t* out, int64_t tile) {
  for (int64_t lane = 0; lane < kTile && tile * kTile + lane < layout.rows; ++lane) {
    const uint8_t* row = source + (tile * kTile + lane) * layout.columns * sizeof(Element);
    for (int64_t c = 0; c < layout.columns; ++c)
      std::memcpy(out + (c * kTile + lane) * sizeof(Element), row + c * sizeof(Element), sizeof(Element));
  }
}

void check_source(const std::string& format, int64_t size, int64_t rows, int64_t columns) {
  const Format* known = find_format(format.c_str());
  if (!known) {
    std::string names;
    for (const Format& each : kFormats) names += (names.empty() ? "" : ", ") + std::string(each.name);
    throw std::invalid_argument("unknown tensor format '" + format + "'; known are: " + names);
  }
  const std::string shape = std::to_string(rows) + " x " + std::to_string(columns);
  if (rows < 1 || columns < 1) throw std::invalid_argument("a matrix of " + shape + " has no elements");
  if (columns % known->block_columns)
    throw std::invalid_argument(format + " stores blocks of " + std::to_string(known->block_columns) +
                                " columns, which do not divide those of a matrix of " + shape);
  const bool plausible = columns <= 2 * size;  // at least 4 bits a weight; else the bytes of a row may overflow
  const int64_t row_bytes = plausible ? source_row_bytes(known->name, columns) : 0;
  if (!plausible || size % row_bytes || size / row_bytes != rows)
    throw std::invalid_argument(format + " data of a matrix of " + shape + " must have " +
                                (plausible ? std::to_string(row_bytes) + " bytes a row" : std::string("more")) +
                                ", but there are " + std::to_string(size) + " bytes");
}

}  // namespace

int64_t source_row_bytes(const char* format, int64_t columns) {
  const Format* known = find_format(format);
  if (!known || columns % known->block_columns) return 0;
  return columns / known->block_columns * known->block_bytes;
}

bool packed_layout(const char* format, int64_t rows, int64_t columns, Matrix* layout) {
  const Format* known = find_format(format);
  if (!known) return false;
  const int64_t tiles = (rows + kTile - 1) / kTile, groups = (columns + kGroup - 1) / kGroup;
  const int64_t span = known->span == kWholeRow ? groups : known->span;
  *layout = {known->form, known->has_minimum, span, rows, columns, tiles, groups, 0, nullptr};
  const int64_t bytes = group_offset(*layout, groups - 1) + group_bytes(known->form, known->has_minimum, span > 0);
  layout->tile_bytes = (bytes + 63) / 64 * 64;
  return true;
}

void pack_tiles(const char* format, const uint8_t* source, const Matrix& layout, uint8_t* data, int64_t tile_begin,
                int64_t tile_end) {
  const Format& known = *find_format(format);
  for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
    uint8_t* out = data + tile * layout.tile_bytes;
    std::memset(out, 0, layout.tile_bytes);
    if (known.read) pack_quantized(known, source, layout, out, tile);
    else if (known.form == Form::F32) pack_plain<uint32_t>(source, layout, out, tile);
    else pack_plain<uint16_t>(source, layout, out, tile);
  }
}

PackedMatrix::PackedMatrix(const uint8_t* source, int64_t size, const std::string& format, int64_t rows,
                           int64_t columns) {
  check_source(format, size, rows, columns);
  packed_layout(format.c_str(), rows, columns, &matrix);
  memory_ = weight_memory(bytes());
  pack_tiles(format.c_str(), source, matrix, memory_.get(), 0, matrix.tiles);
  matrix.data = memory_.get();
}

std::unique_ptr<PackedMatrix> PackedMatrix::of_packed(const uint8_t* packed, int64_t size, const std::string& format,
                                                      int64_t rows, int64_t columns) {
  std::unique_ptr<PackedMatrix> made(new PackedMatrix);
  const bool plausible = rows >= 1 && columns >= 1 && columns <= 2 * size / rows;  // else the layout may overflow
  if (!plausible || !packed_layout(format.c_str(), rows, columns, &made->matrix) || made->bytes() != size)
    throw std::invalid_argument("a packed matrix of " + format + ", " + std::to_string(rows) + " x " +
                                std::to_string(columns) + ", does not have " + std::to_string(size) + " bytes");
  if (reinterpret_cast<uintptr_t>(packed) % 64) throw std::invalid_argument("packed bytes begin at a 64-byte boundary");
  made->matrix.data = packed;
  return made;
}

}  // namespace lightwell
