// The ops around matrix products. An item is a panel of outputs for a block of rows: it is computed into the thread's
// own memory, or straight to its place, and finished there (bias, activation, rotation, quantization) while it is hot.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "op.h"
#include "op_rows.h"
#include "packed_matrix.h"

namespace lightwell {

// x @ weight.T + bias; `bias` is empty where there is none.
struct Projection {
  std::shared_ptr<const PackedMatrix> weight;
  std::vector<float> bias;

  const Matrix& matrix() const { return weight->matrix; }
};

// Items of a linear op: blocks of rows within panels of tiles, so that a panel's weights serve all blocks one by one.
struct Split {
  int64_t rows, block_rows, blocks;
  int64_t tiles, panel_tiles, panels;

  int64_t items() const { return panels * blocks; }
  int64_t first_row(int64_t item) const { return item % blocks * block_rows; }
  int64_t rows_of(int64_t item) const { return std::min(block_rows, rows - first_row(item)); }
  int64_t first_tile(int64_t item) const { return item / blocks * panel_tiles; }
  int64_t last_tile(int64_t item) const { return std::min(first_tile(item) + panel_tiles, tiles); }
};

// Panels are whole multiples of `unit` tiles, each of `tile_bytes`.
Split split(int64_t rows, int64_t tiles, int64_t unit, int64_t tile_bytes, int threads);

// Whether weights of this form are multiplied with int8, where it is there; the others need floats.
bool takes_int8(Form form);

// Rows [first_row, first_row + rows) of x times tiles [tile_begin, tile_end), with the bias, into out. Integer products
// for quantized weights where x is there as int8, else floats.
void project(const Kernels& kernels, const Projection& projection, int64_t tile_begin, int64_t tile_end,
             const Buffer& x, int64_t first_row, int64_t rows, float* out, int64_t out_stride);

// out = x @ w.T + b, or out += that.
class Linear final : public Op {
 public:
  Linear(const Buffer& x, Projection projection, const Buffer& out, bool add)
      : x_(x), projection_(std::move(projection)), out_(out), add_(add) {}

  const char* kind() const override { return "linear"; }
  void schedule(Work& work, std::vector<Phase>& phases) override;
  void run(const Work& work, Worker& worker, int64_t part, int64_t item) const override;

 private:
  void store(const Kernels& kernels, int64_t item) const;
  void accumulate(const Kernels& kernels, int64_t item, float* panel) const;

  const Buffer& x_;
  const Projection projection_;
  const Buffer& out_;
  const bool add_;
  Split split_{};
};

// out = activation(x @ gate.T) * (x @ up.T)
class Gated final : public Op {
 public:
  Gated(const Buffer& x, Projection gate, Projection up, Activation activation, const Buffer& out)
      : x_(x), gate_(std::move(gate)), up_(std::move(up)), activation_(activation), out_(out) {}

  const char* kind() const override { return "gated"; }
  void schedule(Work& work, std::vector<Phase>& phases) override;
  void run(const Work& work, Worker& worker, int64_t part, int64_t item) const override;

 private:
  const Buffer& x_;
  const Projection gate_, up_;
  const Activation activation_;
  const Buffer& out_;
  Split split_{};
};

// A projection into heads, each normalized where `norm` is not empty and rotated where there is a rope.
struct Heads {
  Projection projection;
  std::vector<float> norm;
  float eps;
  const Rope* rope;
};

// Queries into q_out, keys and values into the cache of a layer.
class QueryKeyValue final : public Op {
 public:
  QueryKeyValue(const Buffer& x, Heads q, Heads k, Projection v, int64_t head_dim, int64_t layer, const Buffer& q_out);

  const char* kind() const override { return "qkv"; }
  void schedule(Work& work, std::vector<Phase>& phases) override;
  void run(const Work& work, Worker& worker, int64_t part, int64_t item) const override;

 private:
  void head(const Kernels& kernels, const Heads& heads, int64_t head, int64_t first_row, int64_t rows, float* out,
            int64_t out_stride) const;
  void key_value(const Work& work, Worker& worker, int64_t head, int64_t first_row, int64_t rows) const;

  const Buffer& x_;
  const Heads q_, k_;
  const Projection v_;
  const int64_t head_dim_, layer_;
  const Buffer& q_out_;
  Split split_{};
};

}  // namespace lightwell
