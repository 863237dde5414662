#include "plan.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <stdexcept>

#include "affinity.h"
#include "float_mode.h"

namespace lightwell {
namespace {

static_assert(4 * kMostHeadDim <= kPanelFloats);  // a head of four rows fits a panel

using Clock = std::chrono::steady_clock;

double seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

void require(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
}

void require_shape(const Matrix& w, int64_t rows, int64_t columns) {
  if (w.rows == rows && w.columns == columns) return;
  throw std::invalid_argument("a matrix of " + std::to_string(w.rows) + " x " + std::to_string(w.columns) + ", where " +
                              std::to_string(rows) + " x " + std::to_string(columns) + " fits");
}

// That x times the projection makes this many columns.
void require_product(const Buffer& x, const Projection& projection, int64_t columns) {
  const int64_t bias = static_cast<int64_t>(projection.bias.size());
  require_shape(projection.matrix(), columns, x.columns);
  require(bias == 0 || bias == columns, "a bias has another length than the matrix has rows");
  require(x.has_floats || takes_int8(projection.matrix().form), "the weights need floats, and x has none");
}

void require_columns(const std::vector<float>& weight, int64_t columns) {
  require(static_cast<int64_t>(weight.size()) == columns, "a norm's weight has another width than its input");
}

const PlanShape& checked(const PlanShape& shape, int threads) {
  require(threads >= 1 && threads <= 1024, "threads must be 1..1024");
  require(shape.vocab > 0 && shape.layers > 0 && shape.kv_heads > 0, "a model without vocabulary, layers or heads");
  require(shape.heads > 0 && shape.heads % shape.kv_heads == 0, "heads must be a multiple of KV heads");
  require(shape.head_dim > 0 && shape.head_dim % kTile == 0 && shape.head_dim <= kMostHeadDim,
          "head_dim must be a multiple of 16 up to 2048");
  return shape;
}

}  // namespace

Plan::Plan(const Kernels& kernels, int threads, const PlanShape& shape)
    : shape_(checked(shape, threads)),
      work_{kernels,
            threads,
            {},
            {shape.kv_type, shape.layers, shape.kv_heads, shape.head_dim},
            {},
            std::vector<Worker>(threads)},
      shares_(threads),
      pool_(threads) {
  for (Worker& worker : work_.workers) worker.panel.reserve(2 * kPanelFloats);
}

int Plan::buffer(int64_t columns, bool floats, bool quantized) {
  require(columns > 0 && (floats || quantized), "a buffer without columns or without a form");
  buffers_.push_back(std::make_unique<Buffer>(columns, floats, quantized));
  for (Worker& worker : work_.workers) worker.row.reserve(buffers_.back()->stride());
  return static_cast<int>(buffers_.size()) - 1;
}

Buffer& Plan::at(int buffer) const {
  require(buffer >= 0 && buffer < static_cast<int>(buffers_.size()), "no such buffer");
  return *buffers_[buffer];
}

int Plan::rope(std::vector<double> frequencies, double factor, bool interleaved) {
  require(!frequencies.empty() && 2 * static_cast<int64_t>(frequencies.size()) <= shape_.head_dim,
          "a rope wider than a head");
  ropes_.push_back(std::make_unique<Rope>(std::move(frequencies), factor, interleaved));
  rows().add(rotation_row(*ropes_.back()));
  return static_cast<int>(ropes_.size()) - 1;
}

const Rope& Plan::rope_of(int rope) const {
  require(rope >= 0 && rope < static_cast<int>(ropes_.size()), "no such rope");
  return *ropes_[rope];
}

Rows& Plan::rows() {
  if (!open_rows_) open_rows_ = &push(std::make_unique<Rows>());
  return *open_rows_;
}

template <typename T>
T& Plan::push(std::unique_ptr<T> op) {
  T& added = *op;
  ops_.push_back(std::move(op));
  open_rows_ = nullptr;
  return added;
}

void Plan::embed(std::shared_ptr<const PackedMatrix> table, float scale, int out) {
  require_shape(table->matrix, shape_.vocab, at(out).columns);
  rows().add(embed_row(std::move(table), scale, at(out)));
}

void Plan::norm(int x, std::vector<float> weight, float eps, int out) {
  require_columns(weight, at(x).columns);
  require(at(x).has_floats && at(out).columns == at(x).columns, "a norm reads floats, and keeps their width");
  rows().add(norm_row(at(x), std::move(weight), eps, at(out)));
}

void Plan::add_norm(int x, std::vector<float> weight, float eps, int out) {
  require_columns(weight, at(x).columns);
  require(at(x).has_floats && at(out).has_floats && at(out).columns == at(x).columns,
          "only floats of one width are added");
  rows().add(add_norm_row(at(x), std::move(weight), eps, at(out)));
}

void Plan::add(int x, int out) {
  require(at(x).has_floats && at(out).has_floats && at(out).columns == at(x).columns,
          "only floats of one width are added");
  rows().add(add_row(at(x), at(out)));
}

void Plan::put(int x, int out) {
  require(at(x).has_floats && at(out).columns == at(x).columns, "only floats are put into another form");
  rows().add(put_row(at(x), at(out)));
}

void Plan::linear(int x, Projection projection, int out, bool add) {
  require_product(at(x), projection, at(out).columns);
  require(!at(out).has_quantized, "a linear op makes floats");
  push(std::make_unique<Linear>(at(x), std::move(projection), at(out), add));
}

void Plan::gated(int x, Projection gate, Projection up, Activation activation, int out) {
  require_product(at(x), gate, at(out).columns);
  require_product(at(x), up, at(out).columns);
  push(std::make_unique<Gated>(at(x), std::move(gate), std::move(up), activation, at(out)));
}

void Plan::qkv(int x, Heads q, Heads k, Projection v, int layer, int q_out) {
  require_product(at(x), q.projection, shape_.heads * shape_.head_dim);
  require_product(at(x), k.projection, shape_.kv_heads * shape_.head_dim);
  require_product(at(x), v, shape_.kv_heads * shape_.head_dim);
  for (const Heads* heads : {&q, &k}) {
    if (!heads->norm.empty()) require_columns(heads->norm, shape_.head_dim);
  }
  require(layer >= 0 && layer < shape_.layers, "no such layer");
  require(at(q_out).has_floats && at(q_out).columns == shape_.heads * shape_.head_dim,
          "queries are floats of all heads");
  push(std::make_unique<QueryKeyValue>(at(x), std::move(q), std::move(k), std::move(v), shape_.head_dim, layer,
                                       at(q_out)));
}

void Plan::attention(int q, int layer, Scores scores, int64_t window, int out) {
  const int64_t columns = shape_.heads * shape_.head_dim, group_columns = columns / shape_.kv_heads;
  require(at(q).has_floats && at(q).columns == columns && at(out).columns == columns,
          "attention reads and makes all heads");
  require(!at(out).has_quantized || group_columns % kGroup == 0, "a KV head's output does not fill groups of int8");
  require(layer >= 0 && layer < shape_.layers && window >= 0, "no such layer or window");
  require(scores.soft_cap >= 0 && (scores.sinks.empty() || static_cast<int64_t>(scores.sinks.size()) == shape_.heads),
          "a soft cap below zero, or sinks that are not one a head");
  push(std::make_unique<Attention>(at(q), layer, std::move(scores), attention_schedule(std::min<int64_t>(window, INT32_MAX)),
                                   at(out)));  // positions are int32: a wider window sees no more
}

const AttentionSchedule& Plan::attention_schedule(int64_t window) {
  for (const auto& schedule : work_.attention) {
    if (schedule->window == window) return *schedule;
  }
  const AttentionShape shape{shape_.kv_heads, shape_.heads / shape_.kv_heads, shape_.head_dim};
  work_.attention.push_back(std::make_unique<AttentionSchedule>(shape, window));
  return *work_.attention.back();
}

void Plan::experts(int x, Projection router, std::vector<Expert> experts, Routing routing, Activation activation,
                   bool quantize, int out) {
  const int64_t count = static_cast<int64_t>(experts.size()), width = at(x).columns;
  require(count > 0 && routing.per_row >= 1 && routing.per_row <= count, "a row's experts must be 1 to all of them");
  require(at(out).columns == width, "experts keep the width of their input");
  require_product(at(x), router, count);
  const int64_t inner = experts[0].gate.matrix().rows;
  bool floats = !quantize, int8 = false;
  for (const Expert& expert : experts) {
    require_product(at(x), expert.gate, inner);
    require_product(at(x), expert.up, inner);
    require_shape(expert.down.matrix(), width, inner);
    require(expert.down.bias.empty() || static_cast<int64_t>(expert.down.bias.size()) == width, "a bias of another length");
    const bool integers = quantize && takes_int8(expert.down.matrix().form);
    floats |= !integers;
    int8 |= integers;
  }
  ExpertSpace& space =
      expert_space(std::make_unique<ExpertSpace>(at(x), count, routing.per_row, inner, floats, int8));
  const Experts& op =
      push(std::make_unique<Experts>(at(x), std::move(router), std::move(experts), routing, activation, space));
  rows().add(op.combine_row(at(out)));
}

ExpertSpace& Plan::expert_space(std::unique_ptr<ExpertSpace> wanted) {
  for (const auto& space : expert_spaces_) {
    if (wanted->fits(*space)) return *space;
  }
  expert_spaces_.push_back(std::move(wanted));
  return *expert_spaces_.back();
}

void Plan::logits(int x, std::vector<float> norm, float eps, Projection head, float soft_cap, bool quantize) {
  require_columns(norm, at(x).columns);
  require_product(at(x), head, shape_.vocab);
  require(at(x).has_floats && !logits_, "logits read floats, once");
  require(!quantize || takes_int8(head.matrix().form), "the head needs floats");
  require(soft_cap >= 0, "a soft cap below zero");
  logits_ = &push(std::make_unique<Logits>(at(x), std::move(norm), eps, std::move(head), soft_cap, quantize));
}

int64_t Plan::workspace_bytes(int64_t tokens, int64_t logit_rows, int64_t context) const {
  int64_t floats_of_thread = 2 * kPanelFloats, bytes = 0;
  for (const auto& buffer : buffers_) bytes += buffer->bytes(tokens);
  for (const auto& space : expert_spaces_) bytes += space->bytes(tokens);
  for (const auto& rope : ropes_) bytes += tokens * rope->pairs() * 2 * static_cast<int64_t>(sizeof(float));
  const int64_t parts = (context + kPartition - 1) / kPartition;
  for (const auto& schedule : work_.attention) {
    floats_of_thread = std::max(floats_of_thread, 2 * kPanelFloats + schedule->floats_of_thread(parts));
  }
  bytes += work_.threads * floats_of_thread * static_cast<int64_t>(sizeof(float));
  return bytes + (logits_ ? logits_->workspace_bytes(logit_rows, work_.threads) : 0);
}

double Plan::execute(const StepArrays& arrays, const std::function<void()>& masked) {
  const std::unique_lock<std::mutex> alone(running_, std::try_to_lock);
  if (!alone.owns_lock()) throw std::runtime_error("another thread is in a step of this plan");
  if (work_.cache.blocks() == 0) throw std::runtime_error("allocate the KV cache before the first step");
  const auto start = Clock::now();
  work_.step.take(arrays, shape_.vocab, work_.cache.blocks(), work_.cache.slots());
  for (int64_t i = 0; i < arrays.copies_count; ++i) work_.cache.copy(arrays.copies[2 * i], arrays.copies[2 * i + 1]);
  prepare();
  size_t draws = phases_.size();
  if (masked) draws = std::find_if(phases_.begin(), phases_.end(), [](const Phase& p) { return p.draws; }) - phases_.begin();
  run_phases(0, draws);
  if (draws < phases_.size()) {
    masked();
    run_phases(draws, phases_.size());
  }
  return seconds(Clock::now() - start);
}

void Plan::prepare() {
  const int64_t rows = work_.step.rows();
  phases_.clear();
  if (rows == 0) return;
  for (const auto& buffer : buffers_) buffer->reserve(rows);
  for (const auto& rope : ropes_) rope->reserve(rows);
  for (const auto& schedule : work_.attention) schedule->plan(work_.step, work_.threads);
  for (const auto& op : ops_) op->schedule(work_, phases_);
  for (int thread = 0; thread < work_.threads; ++thread) shares_.open(0, thread, phases_[0].items, phases_[0].in_order);
}

void Plan::run_phases(size_t begin, size_t end) {
  if (begin < end) pool_.run([=, this](int thread) { run(thread, begin, end); });
}

void Plan::run(int thread, size_t begin, size_t end) {
  const FlushToZero mode;
  auto start = Clock::now();
  for (size_t i = begin; i < end; ++i) {
    const Phase& phase = phases_[i];
    if (i + 1 < phases_.size()) shares_.open(i + 1, thread, phases_[i + 1].items, phases_[i + 1].in_order);
    shares_.each(i, thread, [&](int64_t item) { phase.op->run(work_, work_.workers[thread], phase.part, item); });
    pool_.barrier(thread);
    if (thread != 0) continue;
    const auto now = Clock::now();
    phase.op->seconds += seconds(now - start);
    start = now;
  }
}

bool Plan::pin(const std::vector<int>& cpus) {
  require(static_cast<int>(cpus.size()) == work_.threads, "name one CPU for each thread");
  std::atomic<bool> pinned{true};
  pool_.run([&](int thread) {
    if (!pin_thread(cpus[thread])) pinned = false;
  });
  return pinned;
}

std::map<std::string, double> Plan::profile() const {
  std::map<std::string, double> kinds;
  for (const auto& op : ops_) kinds[op->kind()] += op->seconds;
  return kinds;
}

}  // namespace lightwell
