// Operations on single rows: embedding, norms, additions, rotation tables.
// Those that follow one another share a phase, because a row needs no other.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "op.h"
#include "packed_matrix.h"

namespace lightwell {

using RowOp = std::function<void(const Work&, Worker&, int64_t row)>;

class Rows final : public Op {
 public:
  const char* kind() const override { return "rows"; }
  void add(RowOp op) { ops_.push_back(std::move(op)); }
  void schedule(Work& work, std::vector<Phase>& phases) override;
  void run(const Work& work, Worker& worker, int64_t part, int64_t item) const override;

 private:
  std::vector<RowOp> ops_;
};

// Cosines and sines of the step's rows for one kind of rotation.
class Rope {
 public:
  // `frequencies`: radians a token, by pair of dimensions. `factor` multiplies cosines and sines.
  Rope(std::vector<double> frequencies, double factor, bool interleaved)
      : interleaved(interleaved), frequencies_(std::move(frequencies)), factor_(factor) {}

  const bool interleaved;
  int64_t pairs() const { return static_cast<int64_t>(frequencies_.size()); }
  void reserve(int64_t rows);
  void fill(int64_t row, int64_t position) const;
  const float* cos(int64_t row) const { return cos_.get() + row * pairs(); }
  const float* sin(int64_t row) const { return sin_.get() + row * pairs(); }

 private:
  std::vector<double> frequencies_;
  double factor_;
  Aligned<float> cos_, sin_;
};

RowOp embed_row(std::shared_ptr<const PackedMatrix> table, float scale, const Buffer& out);
RowOp norm_row(const Buffer& x, std::vector<float> weight, float eps, const Buffer& out);
RowOp add_norm_row(const Buffer& x, std::vector<float> weight, float eps, const Buffer& out);  // out += norm(x)
RowOp add_row(const Buffer& x, const Buffer& out);                                             // out += x
RowOp put_row(const Buffer& x, const Buffer& out);  // out = x, in the forms that out has
RowOp rotation_row(const Rope& rope);

}  // namespace lightwell
