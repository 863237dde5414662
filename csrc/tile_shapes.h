// What LDTILECFG reads: how large each of AMX's tile registers is. No default values: they would be a function, of which
// the linker could keep the copy compiled for AMX for every CPU.
#pragma once

#include <cstdint>

namespace lightwell {

struct TileShapes {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};

}  // namespace lightwell

// A macro, as _tile_loadconfig is one of each instruction set's own. GCC thinks that only the first 8 bytes are read.
#define LIGHTWELL_LOAD_SHAPES(shapes)                    \
  __asm__ volatile("" : : "r"(&(shapes)) : "memory");    \
  _tile_loadconfig(&(shapes))
