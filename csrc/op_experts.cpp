#include "op_experts.h"

#include <algorithm>
#include <cmath>

namespace lightwell {
namespace {

constexpr int64_t kMostBlockRows = 64;

enum Part : int64_t { kRoute, kChoose, kArrange, kGather, kGate, kDown };

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Ids of the `count` highest scores, the lowest id first among equals, in ascending order. Returns the highest score.
float choose_best(const float* scores, int64_t experts, int64_t count, int32_t* chosen) {
  int64_t found = 0;
  for (int64_t e = 0; e < experts; ++e) {
    int64_t place = found;
    while (place > 0 && scores[e] > scores[chosen[place - 1]]) --place;
    if (place == count) continue;
    found = std::min(found + 1, count);
    for (int64_t i = found - 1; i > place; --i) chosen[i] = chosen[i - 1];
    chosen[place] = static_cast<int32_t>(e);
  }
  const float best = scores[chosen[0]];
  std::sort(chosen, chosen + count);
  return best;
}

}  // namespace

ExpertSpace::ExpertSpace(const Buffer& x, int64_t experts, int64_t per_row, int64_t width, bool float_gated,
                         bool int8_gated)
    : experts(experts),
      per_row(per_row),
      scores(experts, true, false),
      begins(experts + 1),
      gathered(x.columns, x.has_floats, x.has_quantized),
      gated(width, float_gated, int8_gated),
      down(x.columns, true, false) {}

bool ExpertSpace::fits(const ExpertSpace& other) const {
  const auto same = [](const Buffer& a, const Buffer& b) {
    return a.columns == b.columns && a.has_floats == b.has_floats && a.has_quantized == b.has_quantized;
  };
  return experts == other.experts && per_row == other.per_row && same(gathered, other.gathered) &&
         same(gated, other.gated);
}

void ExpertSpace::reserve(int64_t rows) {
  const size_t assignments = rows * per_row;
  scores.reserve(rows);
  for (Buffer* buffer : {&gathered, &gated, &down}) buffer->reserve(rows * per_row);
  if (chosen.size() >= assignments) return;
  chosen.resize(assignments);
  weights.resize(assignments);
  places.resize(assignments);
  by_place.resize(assignments);
}

int64_t ExpertSpace::bytes(int64_t rows) const {
  const int64_t assignments = rows * per_row, indices = 2 * sizeof(int32_t) + 2 * sizeof(float);
  return scores.bytes(rows) + gathered.bytes(assignments) + gated.bytes(assignments) + down.bytes(assignments) +
         assignments * indices;
}

// How many blocks there will be is not known before the rows are routed, so there are items for as many as there can be.
// Blocks of one panel follow each other: those of one expert share its weights, and empty ones are spread over threads.
void Experts::schedule(Work& work, std::vector<Phase>& phases) {
  const int64_t rows = work.step.rows(), assignments = rows * routing_.per_row;
  const int64_t busy = std::min(assignments, space_.experts);
  const int64_t block_rows = std::min(round_up(ceil_div(assignments, space_.experts), 4), kMostBlockRows);
  const int threads = static_cast<int>(ceil_div(work.threads, busy));
  const Matrix &router = router_.matrix(), &gate = experts_[0].gate.matrix(), &down = experts_[0].down.matrix();
  space_.reserve(rows);
  route_ = split(rows, router.tiles, 1, router.tile_bytes, work.threads);
  gate_ = split(block_rows, gate.tiles, kGroup / kTile, 2 * gate.tile_bytes, threads);
  down_ = split(gate_.block_rows, down.tiles, 1, down.tile_bytes, threads);
  most_blocks_ = assignments / gate_.block_rows + busy;
  phases.push_back({this, kRoute, route_.items(), false});
  phases.push_back({this, kChoose, rows, false});
  phases.push_back({this, kArrange, 1, false});
  phases.push_back({this, kGather, rows, false});
  phases.push_back({this, kGate, gate_.panels * most_blocks_, false});
  phases.push_back({this, kDown, down_.panels * most_blocks_, false});
}

void Experts::run(const Work& work, Worker& worker, int64_t part, int64_t item) const {
  switch (part) {
    case kRoute: return route(work.kernels, item);
    case kChoose: return choose(item);
    case kArrange: return arrange(work.step.rows());
    case kGather: return gather(item);
    case kGate: return gate(work.kernels, worker, item);
    default: return down(work.kernels, item);
  }
}

void Experts::route(const Kernels& kernels, int64_t item) const {
  const int64_t first = route_.first_row(item), tile = route_.first_tile(item);
  project(kernels, router_, tile, route_.last_tile(item), x_, first, route_.rows_of(item),
          space_.scores.row(first) + tile * kTile, space_.scores.stride());
}

void Experts::choose(int64_t row) const {
  const float* scores = space_.scores.row(row);
  int32_t* chosen = &space_.chosen[row * routing_.per_row];
  float* weights = &space_.weights[row * routing_.per_row];
  const float best = choose_best(scores, space_.experts, routing_.per_row, chosen);
  float total = 0;
  for (int64_t i = 0; i < routing_.per_row; ++i) total += weights[i] = std::exp(scores[chosen[i]] - best);
  if (!routing_.normalized) {
    total = 0;
    for (int64_t e = 0; e < space_.experts; ++e) total += std::exp(scores[e] - best);
  }
  for (int64_t i = 0; i < routing_.per_row; ++i) weights[i] /= total;
}

// Counting sort of the assignments by expert.
void Experts::arrange(int64_t rows) const {
  const int64_t assignments = rows * routing_.per_row;
  std::vector<int64_t>& begins = space_.begins;
  std::fill(begins.begin(), begins.end(), 0);
  for (int64_t i = 0; i < assignments; ++i) ++begins[space_.chosen[i] + 1];
  space_.blocks.clear();
  for (int64_t e = 0; e < space_.experts; ++e) {
    const int64_t end = begins[e + 1] += begins[e];
    for (int64_t first = begins[e]; first < end; first += gate_.block_rows)
      space_.blocks.push_back({e, first, std::min(gate_.block_rows, end - first)});
  }
  for (int64_t i = 0; i < assignments; ++i) {  // from here on begins[e] is the next free place of expert e
    const int64_t place = begins[space_.chosen[i]]++;
    space_.places[i] = static_cast<int32_t>(place);
    space_.by_place[place] = space_.weights[i];
  }
}

void Experts::gather(int64_t row) const {
  for (int64_t i = row * routing_.per_row; i < (row + 1) * routing_.per_row; ++i)
    space_.gathered.copy_row(space_.places[i], x_, row);
}

void Experts::gate(const Kernels& kernels, Worker& worker, int64_t item) const {
  if (item % most_blocks_ >= static_cast<int64_t>(space_.blocks.size())) return;
  const ExpertSpace::Block& block = space_.blocks[item % most_blocks_];
  const Expert& expert = experts_[block.expert];
  const int64_t tile = item / most_blocks_ * gate_.panel_tiles;
  const int64_t tile_end = std::min(tile + gate_.panel_tiles, gate_.tiles);
  const int64_t stride = (tile_end - tile) * kTile, columns = std::min(stride, space_.gated.columns - tile * kTile);
  float* gate = worker.panel.get();
  float* up = gate + kPanelFloats;
  project(kernels, expert.gate, tile, tile_end, space_.gathered, block.first, block.rows, gate, stride);
  project(kernels, expert.up, tile, tile_end, space_.gathered, block.first, block.rows, up, stride);
  kernels.gated(gate, up, activation_, block.rows * stride, gate);
  for (int64_t row = 0; row < block.rows; ++row)
    space_.gated.put(kernels, block.first + row, tile * kTile, gate + row * stride, columns);
}

void Experts::down(const Kernels& kernels, int64_t item) const {
  if (item % most_blocks_ >= static_cast<int64_t>(space_.blocks.size())) return;
  const ExpertSpace::Block& block = space_.blocks[item % most_blocks_];
  const int64_t tile = item / most_blocks_ * down_.panel_tiles;
  const int64_t tile_end = std::min(tile + down_.panel_tiles, down_.tiles);
  float* out = space_.down.row(block.first) + tile * kTile;
  project(kernels, experts_[block.expert].down, tile, tile_end, space_.gated, block.first, block.rows, out,
          space_.down.stride());
  for (int64_t row = 0; row < block.rows; ++row)
    kernels.scale(out + row * space_.down.stride(), space_.by_place[block.first + row], (tile_end - tile) * kTile);
}

RowOp Experts::combine_row(const Buffer& out) const {
  return [this, &out](const Work& work, Worker& worker, int64_t row) {
    float* sum = out.has_floats ? out.row(row) : worker.row.get();
    const int32_t* places = &space_.places[row * routing_.per_row];
    std::copy_n(space_.down.row(places[0]), out.columns, sum);
    for (int64_t i = 1; i < routing_.per_row; ++i) work.kernels.add(sum, space_.down.row(places[i]), out.columns);
    out.put(work.kernels, row, 0, sum, out.columns);
  };
}

}  // namespace lightwell
