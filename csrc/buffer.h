// Memory of a step: aligned arrays, and the rows of a value as floats, as int8 groups, or both.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

#include "kernels.h"

namespace lightwell {

inline int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

// An array on a cache line of its own, zero at the start.
template <typename T>
class Aligned {
 public:
  // Makes room for n elements; all are zero again where it had less.
  void reserve(int64_t n) {
    if (n <= size_) return;
    const size_t bytes = round_up(n * sizeof(T), 64);
    data_.reset(static_cast<T*>(std::aligned_alloc(64, bytes)));
    if (!data_) throw std::bad_alloc();
    std::memset(data_.get(), 0, bytes);
    size_ = n;
  }
  T* get() const { return data_.get(); }

 private:
  struct Free {
    void operator()(T* data) const { std::free(data); }
  };
  std::unique_ptr<T, Free> data_;
  int64_t size_ = 0;
};

// A value of the plan: one row a token (or a logit row). Rows are padded to whole groups, and the padding stays zero.
class Buffer {
 public:
  Buffer(int64_t columns, bool floats, bool quantized)
      : columns(columns), groups(round_up(columns, kGroup) / kGroup), has_floats(floats), has_quantized(quantized) {}

  const int64_t columns, groups;
  const bool has_floats, has_quantized;

  int64_t stride() const { return groups * kGroup; }
  int64_t bytes(int64_t rows) const {
    return rows * (has_floats * stride() * 4 + has_quantized * (stride() + groups * 8));
  }

  void reserve(int64_t rows) {
    if (has_floats) floats_.reserve(rows * stride());
    if (!has_quantized) return;
    values_.reserve(rows * stride());
    scales_.reserve(rows * groups);
    sums_.reserve(rows * groups);
  }

  float* row(int64_t row) const { return floats_.get() + row * stride(); }

  // The int8 rows from `row` on, columns from a whole group on.
  Quantized quantized(int64_t row) const {
    return {values_.get() + row * stride(), scales_.get() + row * groups, sums_.get() + row * groups, groups};
  }

  // The row of another buffer of the same columns and forms.
  void copy_row(int64_t row, const Buffer& from, int64_t from_row) const {
    if (has_floats) std::memcpy(this->row(row), from.row(from_row), stride() * sizeof(float));
    if (!has_quantized) return;
    const Quantized to = quantized(row), source = from.quantized(from_row);
    std::memcpy(to.values, source.values, stride());
    std::memcpy(to.scales, source.scales, groups * sizeof(float));
    std::memcpy(to.sums, source.sums, groups * sizeof(float));
  }

  // Writes columns [column, column + n) of a row in every form that the buffer has. Where it has int8, `column` begins
  // a group, and n ends one or the row.
  void put(const Kernels& kernels, int64_t row, int64_t column, const float* x, int64_t n) const {
    if (has_floats && x != this->row(row) + column) std::memcpy(this->row(row) + column, x, n * sizeof(float));
    if (!has_quantized) return;
    const Quantized whole = quantized(row);
    const int64_t group = column / kGroup;
    const Quantized part{whole.values + column, whole.scales + group, whole.sums + group, round_up(n, kGroup) / kGroup};
    kernels.quantize(x, n, part, 0);
  }

 private:
  Aligned<float> floats_, scales_, sums_;
  Aligned<int8_t> values_;
};

}  // namespace lightwell
