#include "op_logits.h"

#include <algorithm>

namespace lightwell {
namespace {

constexpr int64_t kChunkRows = 64;  // rows whose scores are held at once: a large vocabulary takes a megabyte for each

// Of scores, by thread: two for the kernel that draws, and one for edited and masked scores, as log-probabilities need the
// model's own.
constexpr int64_t kSamplingRows = 3;

enum Part : int64_t { kHidden = -1, kNormalize = 0, kScore = 1, kDraw = 2 };  // of chunk c: kScore + 2 c and kDraw + 2 c

}  // namespace

Logits::Logits(const Buffer& x, std::vector<float> norm, float eps, Projection head, float soft_cap, bool quantize)
    : x_(x),
      norm_(std::move(norm)),
      eps_(eps),
      head_(std::move(head)),
      soft_cap_(soft_cap),
      normed_(x.columns, !quantize, quantize),
      scores_(head_.matrix().rows, true, false) {}

int64_t Logits::workspace_bytes(int64_t rows, int threads) const {
  const int64_t sampling = threads * kSamplingRows * vocab() * static_cast<int64_t>(sizeof(float));
  return normed_.bytes(rows) + scores_.bytes(std::min(rows, kChunkRows)) + sampling;
}

void Logits::schedule(Work& work, std::vector<Phase>& phases) {
  const int64_t rows = work.step.logit_rows(), hidden = work.step.hidden_rows();
  if (hidden > 0) phases.push_back({this, kHidden, hidden, false});
  if (rows == 0) return;
  normed_.reserve(rows);
  scores_.reserve(std::min(rows, kChunkRows));
  for (Worker& worker : work.workers) worker.sampling.reserve(kSamplingRows * vocab());
  phases.push_back({this, kNormalize, rows, false});
  splits_.clear();
  for (int64_t first = 0; first < rows; first += kChunkRows) {
    const int64_t chunk = static_cast<int64_t>(splits_.size());
    const Matrix& w = head_.matrix();
    splits_.push_back(split(std::min(kChunkRows, rows - first), w.tiles, 1, w.tile_bytes, work.threads));
    phases.push_back({this, kScore + 2 * chunk, splits_.back().items(), false});
    phases.push_back({this, kDraw + 2 * chunk, splits_.back().rows, false, chunk == 0});
  }
}

void Logits::run(const Work& work, Worker& worker, int64_t part, int64_t item) const {
  if (part == kHidden) {
    copy_hidden(work, worker, item);
  } else if (part == kNormalize) {
    normalize(work, worker, item);
  } else if (part % 2 == kScore) {
    score(work, (part - kScore) / 2, item);
  } else {
    draw(work, worker, (part - kDraw) / 2, item);
  }
}

void Logits::copy_hidden(const Work& work, Worker& worker, int64_t row) const {
  const StepArrays& arrays = work.step.arrays();
  float* y = worker.row.get();
  work.kernels.rms_norm(x_.row(arrays.hidden_rows[row]), norm_.data(), eps_, x_.columns, y);
  std::copy_n(y, x_.columns, arrays.hidden + row * x_.columns);
}

void Logits::normalize(const Work& work, Worker& worker, int64_t row) const {
  float* y = worker.row.get();
  work.kernels.rms_norm(x_.row(work.step.arrays().logit_rows[row]), norm_.data(), eps_, x_.columns, y);
  normed_.put(work.kernels, row, 0, y, x_.columns);
}

void Logits::score(const Work& work, int64_t chunk, int64_t item) const {
  const Split& split = splits_[chunk];
  const int64_t row = split.first_row(item), tile = split.first_tile(item), tile_end = split.last_tile(item);
  project(work.kernels, head_, tile, tile_end, normed_, chunk * kChunkRows + row, split.rows_of(item),
          scores_.row(row) + tile * kTile, scores_.stride());
  if (soft_cap_ == 0) return;
  for (int64_t i = row; i < row + split.rows_of(item); ++i) {
    work.kernels.soft_cap(scores_.row(i) + tile * kTile, soft_cap_, (tile_end - tile) * kTile);
  }
}

void Logits::draw(const Work& work, Worker& worker, int64_t chunk, int64_t item) const {
  const StepArrays& arrays = work.step.arrays();
  const float* scores = scores_.row(item);
  const int64_t row = chunk * kChunkRows + item;
  if (arrays.logits) std::copy_n(scores, vocab(), arrays.logits + row * vocab());
  const int32_t given = work.step.given(row);
  arrays.drawn[row] = given >= 0 ? given : choose(work, worker, row, scores);
  const int64_t count = arrays.logprobs[row];
  if (count < 0) return;
  work.kernels.logprobs(scores, vocab(), arrays.drawn[row], count, &arrays.chosen[row],
                        arrays.top_ids + row * arrays.top_count, arrays.top + row * arrays.top_count);
}

int32_t Logits::choose(const Work& work, Worker& worker, int64_t row, const float* scores) const {
  float* room = worker.sampling.get();
  const Constraints constraints = work.step.constraints(row);
  if (constraints.any()) {
    float* constrained = room + 2 * vocab();
    work.kernels.constrain(scores, vocab(), constraints, constrained);
    scores = constrained;
  }
  return work.kernels.sample(scores, vocab(), work.step.sample_params(row), room);
}

}  // namespace lightwell
