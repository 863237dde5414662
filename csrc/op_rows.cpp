#include "op_rows.h"

#include <algorithm>
#include <cmath>

namespace lightwell {
namespace {

constexpr int64_t kRowsPerItem = 4;

}  // namespace

void Rows::schedule(Work& work, std::vector<Phase>& phases) {
  phases.push_back({this, 0, (work.step.rows() + kRowsPerItem - 1) / kRowsPerItem, false});
}

void Rows::run(const Work& work, Worker& worker, int64_t /*part*/, int64_t item) const {
  const int64_t end = std::min((item + 1) * kRowsPerItem, work.step.rows());
  for (int64_t row = item * kRowsPerItem; row < end; ++row) {
    for (const RowOp& op : ops_) op(work, worker, row);
  }
}

void Rope::reserve(int64_t rows) {
  cos_.reserve(rows * pairs());
  sin_.reserve(rows * pairs());
}

void Rope::fill(int64_t row, int64_t position) const {
  for (int64_t i = 0; i < pairs(); ++i) {
    const double angle = static_cast<double>(position) * frequencies_[i];
    cos_.get()[row * pairs() + i] = static_cast<float>(std::cos(angle) * factor_);
    sin_.get()[row * pairs() + i] = static_cast<float>(std::sin(angle) * factor_);
  }
}

RowOp rotation_row(const Rope& rope) {
  return [&rope](const Work& work, Worker&, int64_t row) { rope.fill(row, work.step.arrays().positions[row]); };
}

RowOp embed_row(std::shared_ptr<const PackedMatrix> table, float scale, const Buffer& out) {
  return [table = std::move(table), scale, &out](const Work& work, Worker& worker, int64_t row) {
    float* x = worker.row.get();
    work.kernels.matrix_row(table->matrix, work.step.arrays().tokens[row], x);
    if (scale != 1) work.kernels.scale(x, scale, out.columns);
    out.put(work.kernels, row, 0, x, out.columns);
  };
}

RowOp norm_row(const Buffer& x, std::vector<float> weight, float eps, const Buffer& out) {
  return [&x, weight = std::move(weight), eps, &out](const Work& work, Worker& worker, int64_t row) {
    float* y = out.has_floats ? out.row(row) : worker.row.get();
    work.kernels.rms_norm(x.row(row), weight.data(), eps, x.columns, y);
    out.put(work.kernels, row, 0, y, out.columns);
  };
}

RowOp add_norm_row(const Buffer& x, std::vector<float> weight, float eps, const Buffer& out) {
  return [&x, weight = std::move(weight), eps, &out](const Work& work, Worker& worker, int64_t row) {
    work.kernels.rms_norm(x.row(row), weight.data(), eps, x.columns, worker.row.get());
    work.kernels.add(out.row(row), worker.row.get(), out.columns);
  };
}

RowOp add_row(const Buffer& x, const Buffer& out) {
  return
      [&x, &out](const Work& work, Worker&, int64_t row) { work.kernels.add(out.row(row), x.row(row), out.columns); };
}

RowOp put_row(const Buffer& x, const Buffer& out) {
  return [&x, &out](const Work& work, Worker&, int64_t row) { out.put(work.kernels, row, 0, x.row(row), out.columns); };
}

}  // namespace lightwell
