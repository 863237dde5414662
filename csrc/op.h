// What an op of a plan is. Each turns a step into phases, whose items any thread may compute in any order; all items of
// a phase are done before the next phase begins.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "attention_schedule.h"
#include "buffer.h"
#include "kernels.h"
#include "kv_cache.h"
#include "step.h"

namespace lightwell {

constexpr int64_t kPanelFloats = 8192;  // outputs of one item of a linear op: 32 KiB, to stay in the nearest cache

class Op;

struct Phase {
  Op* op;
  int64_t part;  // which of the op's phases
  int64_t items;
  bool in_order;  // items were sorted, the largest first
  bool draws = false;  // the first that draws tokens: masks must be complete before it
};

// What one thread has for itself.
struct Worker {
  Aligned<float> panel;      // two of kPanelFloats
  Aligned<float> row;        // one row of the widest value
  Aligned<float> attention;  // an attention item's output, and its partials
  Aligned<float> sampling;   // three rows of scores
  std::vector<const float*> partials;
};

// What the ops of a step share.
struct Work {
  const Kernels& kernels;
  const int threads;
  Step step;
  KvCache cache;
  std::vector<std::unique_ptr<AttentionSchedule>> attention;  // one for each window that the model has
  std::vector<Worker> workers;                                // one for each thread
};

class Op {
 public:
  virtual ~Op() = default;
  virtual const char* kind() const = 0;
  // Adds the phases of work.step. Called by one thread, before any phase of the step runs.
  virtual void schedule(Work& work, std::vector<Phase>& phases) = 0;
  virtual void run(const Work& work, Worker& worker, int64_t part, int64_t item) const = 0;

  double seconds = 0;  // that its phases have taken so far
};

}  // namespace lightwell
