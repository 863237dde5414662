// The plan of a model: its ops in order, recorded once, and the one call that runs a step through all of them.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "op.h"
#include "op_attention.h"
#include "op_experts.h"
#include "op_linear.h"
#include "op_logits.h"
#include "op_rows.h"
#include "pool.h"
#include "shares.h"

namespace lightwell {

struct PlanShape {
  int64_t vocab, layers, heads, kv_heads, head_dim;
  KvType kv_type;
};

// Buffers and ropes are known by the number that making them returned. Everything that adds to the plan throws
// std::invalid_argument where shapes do not fit.
class Plan {
 public:
  Plan(const Kernels& kernels, int threads, const PlanShape& shape);

  int buffer(int64_t columns, bool floats, bool quantized);
  int rope(std::vector<double> frequencies, double factor, bool interleaved);

  void embed(std::shared_ptr<const PackedMatrix> table, float scale, int out);
  void norm(int x, std::vector<float> weight, float eps, int out);
  void add_norm(int x, std::vector<float> weight, float eps, int out);  // out += norm(x)
  void add(int x, int out);                                             // out += x
  void put(int x, int out);                                             // out = x, in the forms that out has
  void linear(int x, Projection projection, int out, bool add);
  void gated(int x, Projection gate, Projection up, Activation activation, int out);
  void qkv(int x, Heads q, Heads k, Projection v, int layer, int q_out);
  void attention(int q, int layer, Scores scores, int64_t window, int out);
  // out = the sum of each row's experts. `quantize`: multiply the down projections that take int8 with int8.
  void experts(int x, Projection router, std::vector<Expert> experts, Routing routing, Activation activation,
               bool quantize, int out);
  void logits(int x, std::vector<float> norm, float eps, Projection head, float soft_cap, bool quantize);
  const Rope& rope_of(int rope) const;
  int64_t vocab() const { return shape_.vocab; }
  int64_t hidden_columns() const { return logits_ ? logits_->columns() : 0; }  // of the final norm's rows

  // Keeps thread i of the pool on cpus[i]; the caller, who then should run all steps, is thread 0. False where the system
  // refuses. Throws std::invalid_argument where there is not one CPU for each thread.
  bool pin(const std::vector<int>& cpus);
  void allocate(int64_t blocks) { work_.cache.allocate(blocks); }
  // See KvCache::offload_to.
  void offload_to(int file, int64_t slots) { work_.cache.offload_to(file, slots); }
  int64_t kv_bytes_per_block() const { return work_.cache.bytes_per_block(); }
  // For steps of this many tokens and logit rows, in contexts of this many tokens.
  int64_t workspace_bytes(int64_t tokens, int64_t logit_rows, int64_t context) const;

  // Runs one step; returns the seconds it took. Throws std::invalid_argument for a bad step, before anything is
  // written, and std::runtime_error where there is no cache yet, another thread is in a step, or the offload file fails.
  // `masked`, where there is one, is called before the first token is drawn, when all before that is computed, and returns
  // when the masks are complete; what it throws ends the step.
  double execute(const StepArrays& arrays, const std::function<void()>& masked = {});
  // Seconds spent by kind of op since the plan was made.
  std::map<std::string, double> profile() const;

 private:
  Buffer& at(int buffer) const;
  Rows& rows();
  template <typename T>
  T& push(std::unique_ptr<T> op);
  const AttentionSchedule& attention_schedule(int64_t window);
  ExpertSpace& expert_space(std::unique_ptr<ExpertSpace> wanted);
  void prepare();
  void run_phases(size_t begin, size_t end);
  void run(int thread, size_t begin, size_t end);

  const PlanShape shape_;
  Work work_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
  std::vector<std::unique_ptr<Rope>> ropes_;
  std::vector<std::unique_ptr<ExpertSpace>> expert_spaces_;  // one for each shape of layers with experts
  std::vector<std::unique_ptr<Op>> ops_;
  Rows* open_rows_ = nullptr;  // the row ops just before, which one more would join
  const Logits* logits_ = nullptr;
  std::vector<Phase> phases_;
  Shares shares_;
  std::mutex running_;
  Pool pool_;  // last, so that its threads end first
};

}  // namespace lightwell
