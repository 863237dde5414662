// How the attention of a step is cut into units of work, for all layers that have the same window.
// Contexts are computed partition by partition and merged in order, by one thread or several: the bits are the same.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "buffer.h"
#include "step.h"

namespace lightwell {

struct AttentionShape {
  int64_t kv_heads, group, head_dim;  // group: query heads of a KV head

  int64_t out_floats() const { return kAttentionRows * group * head_dim; }
  // Of one partition of a piece.
  int64_t partial_floats(int64_t rows) const { return round_up(rows * group * (head_dim + 2), 16); }
};

// Up to kAttentionRows rows of one sequence, with one KV head, over all partitions that they see.
struct AttentionPiece {
  const Sequence* sequence;
  int64_t first_row, rows;  // of the step
  int64_t kv_head;
  int64_t part_begin, part_end;
  int64_t partials;  // where they are kept when several threads compute it, else -1

  int64_t first_position() const { return sequence->first_position + first_row - sequence->first_row; }
  int64_t parts() const { return part_end - part_begin; }
};

// What one thread computes at a time: a whole piece, or one partition of it.
struct AttentionUnit {
  int64_t piece;
  int64_t part_begin, part_end;
};

class AttentionSchedule {
 public:
  AttentionSchedule(AttentionShape shape, int64_t window) : shape(shape), window(window) {}

  const AttentionShape shape;
  const int64_t window;  // 0: none

  void plan(const Step& step, int threads);
  const std::vector<AttentionUnit>& units() const { return units_; }
  const AttentionPiece& piece(int64_t index) const { return pieces_[index]; }
  int64_t most_parts() const { return most_parts_; }
  // The KV block that a unit reads as its i-th, its last one for more.
  int32_t block(const AttentionUnit& unit, int64_t i) const;
  // That a thread needs for itself: an output and the partials of a context of so many partitions.
  int64_t floats_of_thread(int64_t parts) const {
    return shape.out_floats() + parts * shape.partial_floats(kAttentionRows);
  }

  float* partial(const AttentionPiece& piece, int64_t part) const {
    return partials_.get() + piece.partials + (part - piece.part_begin) * shape.partial_floats(piece.rows);
  }
  // Counts a unit of a shared piece as done; true for the last one, which also makes it ready for the next layer.
  bool finish(int64_t piece) const;

 private:
  void add_pieces(const Sequence& sequence);
  void cut(int threads);

  std::vector<AttentionPiece> pieces_;
  std::vector<AttentionUnit> units_;
  int64_t most_parts_ = 0;
  Aligned<float> partials_;
  std::unique_ptr<std::atomic<int64_t>[]> left_;  // units of each piece that are not done
  int64_t left_size_ = 0;
};

}  // namespace lightwell
