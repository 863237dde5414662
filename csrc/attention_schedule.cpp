#include "attention_schedule.h"

#include <algorithm>

namespace lightwell {
namespace {

constexpr int64_t kUnitsPerThread = 4;

// Tokens and rows that a piece reads, with what it costs to start on a partition.
int64_t cost(const AttentionPiece& piece) { return piece.parts() * (piece.rows + 4); }

}  // namespace

void AttentionSchedule::plan(const Step& step, int threads) {
  pieces_.clear();
  most_parts_ = 0;
  for (const Sequence& sequence : step.sequences()) add_pieces(sequence);
  std::stable_sort(pieces_.begin(), pieces_.end(),
                   [](const AttentionPiece& a, const AttentionPiece& b) { return cost(a) > cost(b); });
  cut(threads);
}

void AttentionSchedule::add_pieces(const Sequence& sequence) {
  for (int64_t row = 0; row < sequence.rows; row += kAttentionRows) {
    const int64_t rows = std::min(kAttentionRows, sequence.rows - row);
    const int64_t first = sequence.first_position + row;
    const int64_t seen_from = window ? std::max<int64_t>(0, first - window + 1) : 0;
    const int64_t part_begin = seen_from / kPartition, part_end = (first + rows - 1) / kPartition + 1;
    most_parts_ = std::max(most_parts_, part_end - part_begin);
    for (int64_t head = 0; head < shape.kv_heads; ++head) {
      pieces_.push_back({&sequence, sequence.first_row + row, rows, head, part_begin, part_end, -1});
    }
  }
}

// A piece that is more than a fair part of a thread's work is shared, partition by partition.
void AttentionSchedule::cut(int threads) {
  int64_t total = 0, partials = 0;
  for (const AttentionPiece& piece : pieces_) total += cost(piece);
  const int64_t pieces = static_cast<int64_t>(pieces_.size());
  if (left_size_ < pieces) left_.reset(new std::atomic<int64_t>[left_size_ = pieces]);
  units_.clear();
  for (int64_t i = 0; i < pieces; ++i) {
    AttentionPiece& piece = pieces_[i];
    left_[i].store(piece.parts(), std::memory_order_relaxed);
    if (threads == 1 || piece.parts() == 1 || cost(piece) * threads * kUnitsPerThread <= total) {
      units_.push_back({i, piece.part_begin, piece.part_end});
      continue;
    }
    piece.partials = partials;
    partials += piece.parts() * shape.partial_floats(piece.rows);
    for (int64_t part = piece.part_begin; part < piece.part_end; ++part) units_.push_back({i, part, part + 1});
  }
  partials_.reserve(partials);
}

int32_t AttentionSchedule::block(const AttentionUnit& unit, int64_t i) const {
  const AttentionPiece& piece = pieces_[unit.piece];
  const int64_t seen_from = window ? std::max<int64_t>(0, piece.first_position() - window + 1) : 0;
  const int64_t first = std::max(seen_from, unit.part_begin * kPartition) / kBlock;
  return piece.sequence->blocks[std::min(first + i, (piece.first_position() + piece.rows - 1) / kBlock)];
}

bool AttentionSchedule::finish(int64_t piece) const {
  if (left_[piece].fetch_sub(1, std::memory_order_acq_rel) != 1) return false;
  left_[piece].store(pieces_[piece].parts(), std::memory_order_relaxed);
  return true;
}

}  // namespace lightwell
