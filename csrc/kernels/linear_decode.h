// Packed weights back to floats, one row of a group at a time.
#pragma once

namespace lightwell::LIGHTWELL_ISA::linear {

// The stored value of column c (0..31) of a group, for one of the tile's 16 rows.
LIGHTWELL_LINEAR float stored_value(Form form, const uint8_t* group, int64_t lane, int64_t c) {
  const int64_t chunk = c / kChunk, byte = lane * kChunk + c % kChunk, element = c * kTile + lane;
  switch (form) {
    case Form::W4: {
      const uint8_t pair = group[chunk / 2 * kChunkBytes + byte];
      return chunk % 2 ? pair >> 4 : pair & 15;
    }
    case Form::W8:
    case Form::W8H:
      return static_cast<int8_t>(group[chunk * kChunkBytes + byte]);
    case Form::BF16:
      return float_from_bits(static_cast<uint32_t>(load_u16(group + 2 * element)) << 16);
    case Form::F16:
      return float_from_half(load_u16(group + 2 * element));
    case Form::F32:
      return reinterpret_cast<const float*>(group)[element];
  }
  return 0;
}

// The scale of part `part` of group g of a tile for one row, or its minimum where `part` is the number of parts.
LIGHTWELL_LINEAR float stored_scale(const Matrix& w, const uint8_t* tile, int64_t g, int64_t part, int64_t lane) {
  const uint8_t* scales = tile + group_offset(w, g) + weight_bytes(w.form) + part * scale_bytes(w.span > 0);
  if (!w.span) return float_from_half(load_u16(scales + 2 * lane));
  const float* multipliers = reinterpret_cast<const float*>(tile + span_offset(w, g));
  return multipliers[part / scale_parts(w.form) * kTile + lane] * static_cast<int8_t>(scales[lane]);
}

// Row `lane` of group g of a tile, to out[0], out[step], ... out[31 * step].
static void decode_group(const Matrix& w, int64_t tile_index, int64_t g, int64_t lane, float* out, int64_t step) {
  const uint8_t* tile = w.data + tile_index * w.tile_bytes;
  const uint8_t* group = tile + group_offset(w, g);
  const int64_t parts = scale_parts(w.form);
  const float minimum = w.has_minimum ? stored_scale(w, tile, g, parts, lane) : 0.0f;
  for (int64_t c = 0; c < kGroup; ++c) {
    const float value = stored_value(w.form, group, lane, c);
    out[c * step] = parts ? stored_scale(w, tile, g, parts * c / kGroup, lane) * value + minimum : value;
  }
}

}  // namespace lightwell::LIGHTWELL_ISA::linear
