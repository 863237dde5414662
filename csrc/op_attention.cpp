#include "op_attention.h"

#include <algorithm>

namespace lightwell {

void Attention::schedule(Work& work, std::vector<Phase>& phases) {
  for (Worker& worker : work.workers) {
    worker.attention.reserve(schedule_.floats_of_thread(schedule_.most_parts()));
    worker.partials.reserve(schedule_.most_parts());
  }
  phases.push_back({this, 0, static_cast<int64_t>(schedule_.units().size()), true});
}

void Attention::run(const Work& work, Worker& worker, int64_t /*part*/, int64_t index) const {
  const AttentionUnit& unit = schedule_.units()[index];
  const AttentionPiece& piece = schedule_.piece(unit.piece);
  const AttentionItem item = this->item(work, worker, piece, index + work.threads);
  const bool shared = piece.partials >= 0;
  float* own = worker.attention.get() + schedule_.shape.out_floats();
  const auto partial = [&](int64_t part) {
    return shared ? schedule_.partial(piece, part)
                  : own + (part - piece.part_begin) * schedule_.shape.partial_floats(piece.rows);
  };
  for (int64_t part = unit.part_begin; part < unit.part_end; ++part)
    kv_kernels(work.kernels, work.cache.type).attention_part(item, part, partial(part));
  if (shared && !schedule_.finish(unit.piece)) return;
  worker.partials.clear();
  for (int64_t part = piece.part_begin; part < piece.part_end; ++part) worker.partials.push_back(partial(part));
  merge(work, worker, item, piece);
}

AttentionItem Attention::item(const Work& work, Worker& worker, const AttentionPiece& piece, int64_t next_unit) const {
  const AttentionShape& shape = schedule_.shape;
  const int64_t columns = shape.group * shape.head_dim, column = piece.kv_head * columns;
  AttentionItem item{
      .q = q_.row(piece.first_row) + column,
      .q_stride = q_.stride(),
      .rows = piece.rows,
      .heads = shape.group,
      .head_dim = shape.head_dim,
      .first_position = piece.first_position(),
      .window = schedule_.window,
      .scale = scores_.scale,
      .soft_cap = scores_.soft_cap,
      .sinks = scores_.sinks.empty() ? nullptr : &scores_.sinks[piece.kv_head * shape.group],
      .blocks = piece.sequence->blocks,
      .cache = work.cache.head(layer_, piece.kv_head),
      .block_stride = work.cache.block_stride,
      .next = {},
      .out = out_.has_floats ? out_.row(piece.first_row) + column : worker.attention.get(),
      .out_stride = out_.has_floats ? out_.stride() : columns,
  };
  const int64_t last_unit = static_cast<int64_t>(schedule_.units().size()) - 1;
  const AttentionUnit& unit = schedule_.units()[std::min(next_unit, last_unit)];
  for (int64_t i = 0; i < kBlocksAhead; ++i) {
    const AttentionPiece& next = schedule_.piece(unit.piece);
    item.next[i] = work.cache.head(layer_, next.kv_head) + schedule_.block(unit, i) * work.cache.block_stride;
  }
  return item;
}

void Attention::merge(const Work& work, Worker& worker, const AttentionItem& item, const AttentionPiece& piece) const {
  work.kernels.attention_merge(item, worker.partials.data(), piece.parts());
  if (!out_.has_quantized) return;
  const int64_t columns = schedule_.shape.group * schedule_.shape.head_dim;
  for (int64_t row = 0; row < piece.rows; ++row) {
    out_.put(work.kernels, piece.first_row + row, piece.kv_head * columns, item.out + row * item.out_stride, columns);
  }
}

}  // namespace lightwell
