// A mixture of experts: a router chooses experts for every row, the rows are grouped by expert, and each expert's gated
// network computes its rows with the kernels of dense layers. A row's result is the sum of its experts' in ascending
// order of their ids, so that it depends on nobody else in the step.
#pragma once

#include <cstdint>
#include <vector>

#include "op.h"
#include "op_linear.h"
#include "op_rows.h"

namespace lightwell {

struct Expert {
  Projection gate, up, down;
};

// How a row's scores become its experts and their weights: those of the highest scores, with softmax over the scores of
// the chosen (`normalized`) or of all experts.
struct Routing {
  int64_t per_row;
  bool normalized;
};

// What the layers with experts need while they run, one after the other. An assignment is a row and one of its experts.
struct ExpertSpace {
  // Rows that follow one another in the order of experts, and belong to one.
  struct Block {
    int64_t expert, first, rows;
  };

  ExpertSpace(const Buffer& x, int64_t experts, int64_t per_row, int64_t width, bool float_gated, bool int8_gated);

  // Whether a layer that would make this space can use that one.
  bool fits(const ExpertSpace& other) const;
  void reserve(int64_t rows);
  int64_t bytes(int64_t rows) const;

  const int64_t experts, per_row;
  Buffer scores;                 // by row: one for each expert
  std::vector<int32_t> chosen;   // [rows][per_row], ascending
  std::vector<float> weights;    // [rows][per_row]
  std::vector<int32_t> places;   // [rows][per_row]: where the assignment stands in the order of experts
  std::vector<float> by_place;   // the weights in that order
  std::vector<int64_t> begins;   // by expert: its first place; one more for the end
  std::vector<Block> blocks;
  Buffer gathered, gated, down;  // by place: the inputs, the gated values, the weighted outputs
};

class Experts final : public Op {
 public:
  Experts(const Buffer& x, Projection router, std::vector<Expert> experts, Routing routing, Activation activation,
          ExpertSpace& space)
      : x_(x), router_(std::move(router)), experts_(std::move(experts)), routing_(routing), activation_(activation),
        space_(space) {}

  const char* kind() const override { return "experts"; }
  void schedule(Work& work, std::vector<Phase>& phases) override;
  void run(const Work& work, Worker& worker, int64_t part, int64_t item) const override;

  // out = the sum of the row's experts
  RowOp combine_row(const Buffer& out) const;

 private:
  void route(const Kernels& kernels, int64_t item) const;
  void choose(int64_t row) const;
  void arrange(int64_t rows) const;
  void gather(int64_t row) const;
  void gate(const Kernels& kernels, Worker& worker, int64_t item) const;
  void down(const Kernels& kernels, int64_t item) const;

  const Buffer& x_;
  const Projection router_;
  const std::vector<Expert> experts_;
  const Routing routing_;
  const Activation activation_;
  ExpertSpace& space_;
  Split route_{}, gate_{}, down_{};
  int64_t most_blocks_ = 0;
};

}  // namespace lightwell
