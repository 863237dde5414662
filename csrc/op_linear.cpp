#include "op_linear.h"

#include <algorithm>

namespace lightwell {
namespace {

constexpr int64_t kRowBlock = 64;         // most rows of an item: their int8 values stay in the second cache
constexpr int64_t kItemsPerThread = 8;    // enough that the last one of a phase is short
constexpr int64_t kPanelBytes = 1 << 16;  // of weights, that an item is worth its overhead and stays in the cache
constexpr int64_t kTileRows = 4;          // rows that kernels take at once

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

Split split(int64_t rows, int64_t tiles, int64_t unit, int64_t tile_bytes, int threads) {
  Split s{};
  s.rows = rows;
  s.tiles = tiles;
  const int64_t most_rows = std::clamp(kPanelFloats / (unit * kTile) / kTileRows * kTileRows, kTileRows, kRowBlock);
  s.block_rows = std::max(kTileRows, round_up(ceil_div(rows, ceil_div(rows, most_rows)), kTileRows));
  s.blocks = ceil_div(rows, s.block_rows);
  const int64_t fitting = kPanelFloats / (s.block_rows * kTile);
  const int64_t fair = ceil_div(tiles * s.blocks, threads * (rows == 1 ? 1 : kItemsPerThread));
  const int64_t hot = rows == 1 ? tiles : std::max<int64_t>(kPanelBytes / tile_bytes, 1);  // one row reads them once
  const int64_t most = std::min({fitting, fair, hot});
  s.panel_tiles = std::max(most / unit * unit, unit);
  s.panels = ceil_div(tiles, s.panel_tiles);
  return s;
}

bool takes_int8(Form form) { return form == Form::W4 || form == Form::W8 || form == Form::W8H; }

void project(const Kernels& kernels, const Projection& projection, int64_t tile_begin, int64_t tile_end,
             const Buffer& x, int64_t first_row, int64_t rows, float* out, int64_t out_stride) {
  const Matrix& w = projection.matrix();
  if (x.has_quantized && takes_int8(w.form)) {
    kernels.linear_int8(w, tile_begin, tile_end, x.quantized(first_row), rows, out, out_stride);
  } else {
    kernels.linear_float(w, tile_begin, tile_end, x.row(first_row), x.stride(), rows, out, out_stride);
  }
  if (projection.bias.empty()) return;
  const int64_t column = tile_begin * kTile, columns = std::min(tile_end * kTile, w.rows) - column;
  for (int64_t row = 0; row < rows; ++row) kernels.add(out + row * out_stride, &projection.bias[column], columns);
}

void Linear::schedule(Work& work, std::vector<Phase>& phases) {
  const Matrix& w = projection_.matrix();
  split_ = split(work.step.rows(), w.tiles, 1, w.tile_bytes, work.threads);
  phases.push_back({this, 0, split_.items(), false});
}

void Linear::run(const Work& work, Worker& worker, int64_t /*part*/, int64_t item) const {
  if (add_) {
    accumulate(work.kernels, item, worker.panel.get());
  } else {
    store(work.kernels, item);
  }
}

void Linear::store(const Kernels& kernels, int64_t item) const {
  const int64_t first = split_.first_row(item), tile = split_.first_tile(item);
  project(kernels, projection_, tile, split_.last_tile(item), x_, first, split_.rows_of(item),
          out_.row(first) + tile * kTile, out_.stride());
}

void Linear::accumulate(const Kernels& kernels, int64_t item, float* panel) const {
  const int64_t first = split_.first_row(item), tile = split_.first_tile(item), tile_end = split_.last_tile(item);
  const int64_t stride = (tile_end - tile) * kTile, columns = std::min(stride, out_.columns - tile * kTile);
  project(kernels, projection_, tile, tile_end, x_, first, split_.rows_of(item), panel, stride);
  for (int64_t row = 0; row < split_.rows_of(item); ++row) {
    kernels.add(out_.row(first + row) + tile * kTile, panel + row * stride, columns);
  }
}

void Gated::schedule(Work& work, std::vector<Phase>& phases) {
  const Matrix& w = gate_.matrix();
  split_ = split(work.step.rows(), w.tiles, kGroup / kTile, 2 * w.tile_bytes, work.threads);
  phases.push_back({this, 0, split_.items(), false});
}

void Gated::run(const Work& work, Worker& worker, int64_t /*part*/, int64_t item) const {
  const int64_t first = split_.first_row(item), rows = split_.rows_of(item);
  const int64_t tile = split_.first_tile(item), tile_end = split_.last_tile(item);
  const int64_t stride = (tile_end - tile) * kTile, columns = std::min(stride, out_.columns - tile * kTile);
  float* gate = worker.panel.get();
  float* up = gate + kPanelFloats;
  project(work.kernels, gate_, tile, tile_end, x_, first, rows, gate, stride);
  project(work.kernels, up_, tile, tile_end, x_, first, rows, up, stride);
  work.kernels.gated(gate, up, activation_, rows * stride, gate);
  for (int64_t row = 0; row < rows; ++row) {
    out_.put(work.kernels, first + row, tile * kTile, gate + row * stride, columns);
  }
}

QueryKeyValue::QueryKeyValue(const Buffer& x, Heads q, Heads k, Projection v, int64_t head_dim, int64_t layer,
                             const Buffer& q_out)
    : x_(x), q_(std::move(q)), k_(std::move(k)), v_(std::move(v)), head_dim_(head_dim), layer_(layer), q_out_(q_out) {}

void QueryKeyValue::schedule(Work& work, std::vector<Phase>& phases) {
  // One head an item, the key and the value of a KV head together and first, as they take longer.
  const Matrix& w = q_.projection.matrix();
  const int64_t unit = head_dim_ / kTile, heads = q_out_.columns / head_dim_ + work.cache.kv_heads;
  split_ = split(work.step.rows(), heads * unit, unit, w.tile_bytes, work.threads);
  split_.panel_tiles = unit;
  split_.panels = heads;
  phases.push_back({this, 0, split_.items(), false});
}

void QueryKeyValue::run(const Work& work, Worker& worker, int64_t /*part*/, int64_t item) const {
  const int64_t first = split_.first_row(item), rows = split_.rows_of(item), index = item / split_.blocks;
  if (index < work.cache.kv_heads) return key_value(work, worker, index, first, rows);
  const int64_t q_head = index - work.cache.kv_heads;
  head(work.kernels, q_, q_head, first, rows, q_out_.row(first) + q_head * head_dim_, q_out_.stride());
}

void QueryKeyValue::head(const Kernels& kernels, const Heads& heads, int64_t head, int64_t first_row, int64_t rows,
                         float* out, int64_t out_stride) const {
  const int64_t unit = head_dim_ / kTile;
  project(kernels, heads.projection, head * unit, (head + 1) * unit, x_, first_row, rows, out, out_stride);
  for (int64_t row = 0; row < rows; ++row) {
    float* x = out + row * out_stride;
    if (!heads.norm.empty()) kernels.rms_norm(x, heads.norm.data(), heads.eps, head_dim_, x);
    if (!heads.rope) continue;
    kernels.rotary(x, 1, head_dim_, 2 * heads.rope->pairs(), heads.rope->interleaved, heads.rope->cos(first_row + row),
                   heads.rope->sin(first_row + row));
  }
}

void QueryKeyValue::key_value(const Work& work, Worker& worker, int64_t kv_head, int64_t first_row,
                              int64_t rows) const {
  float* keys = worker.panel.get();
  float* values = keys + kPanelFloats;
  const int64_t unit = head_dim_ / kTile;
  head(work.kernels, k_, kv_head, first_row, rows, keys, head_dim_);
  project(work.kernels, v_, kv_head * unit, (kv_head + 1) * unit, x_, first_row, rows, values, head_dim_);
  for (int64_t row = 0; row < rows; ++row) {
    const KvSlot slot = work.step.slot(first_row + row);
    uint8_t* share = work.cache.head(layer_, kv_head) + slot.block * work.cache.block_stride;
    kv_kernels(work.kernels, work.cache.type)
        .store(keys + row * head_dim_, values + row * head_dim_, head_dim_, share, slot.slot);
  }
}

}  // namespace lightwell
