// The end of a step: the final norm, the output head and the choice of a token, for the rows that need one; and for those
// that are asked for, what the final norm makes of them.
#pragma once

#include <vector>

#include "op.h"
#include "op_linear.h"

namespace lightwell {

class Logits final : public Op {
 public:
  // `soft_cap` bounds the scores; 0: nothing does.
  Logits(const Buffer& x, std::vector<float> norm, float eps, Projection head, float soft_cap, bool quantize);

  const char* kind() const override { return "logits"; }
  void schedule(Work& work, std::vector<Phase>& phases) override;
  void run(const Work& work, Worker& worker, int64_t part, int64_t item) const override;

  int64_t vocab() const { return head_.matrix().rows; }
  int64_t columns() const { return x_.columns; }  // of a hidden row
  // For this many logit rows and threads.
  int64_t workspace_bytes(int64_t rows, int threads) const;

 private:
  void copy_hidden(const Work& work, Worker& worker, int64_t row) const;
  void normalize(const Work& work, Worker& worker, int64_t row) const;
  void score(const Work& work, int64_t chunk, int64_t item) const;
  void draw(const Work& work, Worker& worker, int64_t chunk, int64_t item) const;
  int32_t choose(const Work& work, Worker& worker, int64_t row, const float* scores) const;

  const Buffer& x_;
  const std::vector<float> norm_;
  const float eps_;
  const Projection head_;
  const float soft_cap_;
  Buffer normed_;              // by logit row
  Buffer scores_;              // by row of a chunk of logit rows
  std::vector<Split> splits_;  // by chunk
};

}  // namespace lightwell
