// How rows and tiles are cut into blocks whose sums fit the registers. The cut changes speed only: each output's sum is
// the same in every block.
#pragma once

namespace lightwell::LIGHTWELL_ISA::linear {

constexpr int64_t kPanel = 4;  // tiles that come from memory once for all rows

// Where output 0 of a tile goes for a row.
struct Target {
  float* out;
  int64_t stride, tile_begin;

  float* at(int64_t row, int64_t tile) const { return out + row * stride + (tile - tile_begin) * kTile; }
};

// Ask for the bytes of the next tiles that lie where these do. For the first rows only: the others find them in a cache.
template <int Tiles>
LIGHTWELL_LINEAR void prefetch(const uint8_t* const (&weights)[Tiles], int64_t bytes, int64_t tile_bytes) {
  for (int t = 0; t < Tiles; ++t)
    for (int64_t line = 0; line < bytes; line += 64) __builtin_prefetch(weights[t] + Tiles * tile_bytes + line);
}

// One row is bound by memory, and several long streams arrive faster than one: the tiles of a block lie apart, each in a
// stretch of its own, and are left to the CPU to fetch ahead. Returns the first tile that is left over.
template <class Block>
LIGHTWELL_LINEAR int64_t run_streams(const Block& block, int64_t tile, int64_t tile_end) {
  const int64_t stretch = (tile_end - tile) / kStreams;
  for (int64_t t = tile; t < tile + stretch; ++t) block.template run<1, kStreams>(0, t, stretch);
  return tile + kStreams * stretch;
}

// The last `tiles` <= Tiles tiles.
template <class Block, int Rows, int Tiles>
LIGHTWELL_LINEAR void run_last_tiles(const Block& block, int64_t row, int64_t tile, int64_t tiles) {
  if constexpr (Tiles > 0) {
    if (tiles == Tiles) block.template run<Rows, Tiles>(row, tile);
    else run_last_tiles<Block, Rows, Tiles - 1>(block, row, tile, tiles);
  }
}

// Rows [row, row + Rows) against tiles [tile, tile_end), as many tiles at a time as the block likes for so many rows.
template <class Block, int Rows>
LIGHTWELL_LINEAR void run_tiles(const Block& block, int64_t row, int64_t tile, int64_t tile_end) {
  constexpr int together = Block::template tiles<Rows>();
  for (; tile + together <= tile_end; tile += together) block.template run<Rows, together>(row, tile);
  run_last_tiles<Block, Rows, together - 1>(block, row, tile, tile_end - tile);
}

// The last `rows` <= Rows rows.
template <class Block, int Rows>
static void run_rest(const Block& block, int64_t row, int64_t rows, int64_t tile, int64_t tile_end) {
  if constexpr (Rows > 0) {
    if (rows == Rows) run_tiles<Block, Rows>(block, row, tile, tile_end);
    else run_rest<Block, Rows - 1>(block, row, rows, tile, tile_end);
  }
}

// Full blocks keep a tile in the nearest cache for all of their rows.
template <class Block>
static void run_blocks(const Block& block, int64_t rows, int64_t tile_begin, int64_t tile_end) {
  if (rows == 1 && kStreams > 1) tile_begin = run_streams(block, tile_begin, tile_end);
  constexpr int most = Block::kRows;
  constexpr int64_t together = Block::template tiles<most>();
  const int64_t rest = rows % most;
  for (int64_t panel = tile_begin; panel < tile_end; panel += kPanel) {
    const int64_t end = panel + kPanel < tile_end ? panel + kPanel : tile_end;
    for (int64_t tile = panel; tile < end; tile += together)
      for (int64_t row = 0; row + most <= rows; row += most)
        run_tiles<Block, most>(block, row, tile, tile + together < end ? tile + together : end);
    run_rest<Block, most - 1>(block, rows - rest, rest, panel, end);
  }
}

}  // namespace lightwell::LIGHTWELL_ISA::linear
