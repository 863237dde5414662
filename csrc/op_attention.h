// Attention from queries to the paged cache.
#pragma once

#include <vector>

#include "op.h"

namespace lightwell {

// How the products of queries and keys become scores.
struct Scores {
  float scale;
  float soft_cap;            // 0: none
  std::vector<float> sinks;  // by query head; empty: none
};

// The output of a KV head's query heads goes to `out` in all its forms: where that has int8, a whole number of groups.
class Attention final : public Op {
 public:
  Attention(const Buffer& q, int64_t layer, Scores scores, const AttentionSchedule& schedule, const Buffer& out)
      : q_(q), layer_(layer), scores_(std::move(scores)), schedule_(schedule), out_(out) {}

  const char* kind() const override { return "attention"; }
  void schedule(Work& work, std::vector<Phase>& phases) override;
  void run(const Work& work, Worker& worker, int64_t part, int64_t item) const override;

 private:
  AttentionItem item(const Work& work, Worker& worker, const AttentionPiece& piece, int64_t next_unit) const;
  void merge(const Work& work, Worker& worker, const AttentionItem& item, const AttentionPiece& piece) const;

  const Buffer& q_;
  const int64_t layer_;
  const Scores scores_;
  const AttentionSchedule& schedule_;
  const Buffer& out_;
};

}  // namespace lightwell
