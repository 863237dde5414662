#include "step.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

namespace lightwell {
namespace {

[[noreturn]] void bad(const std::string& what) { throw std::invalid_argument("bad step: " + what); }

std::string at(const char* array, int64_t index, int64_t value) {
  return std::string(array) + "[" + std::to_string(index) + "] is " + std::to_string(value);
}

std::string outside(int64_t begin, int64_t end) {
  return ", not in " + std::to_string(begin) + ".." + std::to_string(end - 1);
}

}  // namespace

void Step::take(const StepArrays& arrays, int64_t vocab, int64_t blocks) {
  arrays_ = arrays;
  for (int64_t row = 0; row < arrays.rows; ++row) {
    const int64_t token = arrays.tokens[row];
    if (token < 0 || token >= vocab) bad(at("tokens", row, token) + outside(0, vocab));
  }
  take_sequences(blocks);
  check_writers();
  check_logit_rows();
  check_sampling(vocab);
}

void Step::take_sequences(int64_t blocks) {
  sequences_.clear();
  written_.clear();
  slots_.resize(arrays_.rows);
  const int32_t* starts = arrays_.starts;
  if (starts[0] != 0) bad(at("starts", 0, starts[0]) + ", not 0");
  for (int64_t i = 0; i < arrays_.sequences; ++i) {
    if (starts[i + 1] < starts[i] || starts[i + 1] > arrays_.rows) {
      bad(at("starts", i + 1, starts[i + 1]) + outside(starts[i], arrays_.rows + 1));
    }
    if (starts[i] < starts[i + 1]) take_sequence(i, blocks);
  }
  const int64_t last = starts[arrays_.sequences];
  if (last != arrays_.rows)
    bad(at("starts", arrays_.sequences, last) + ", but there are " + std::to_string(arrays_.rows) + " tokens");
}

void Step::take_sequence(int64_t index, int64_t blocks) {
  const int64_t begin = arrays_.starts[index], rows = arrays_.starts[index + 1] - begin;
  const int64_t first = arrays_.positions[begin], end = first + rows;
  const int32_t* table = arrays_.block_tables + index * arrays_.table_columns;
  if (first < 0 || end > arrays_.table_columns * kBlock) {
    bad(at("positions", begin, first) + ", but " + std::to_string(rows) + " tokens from there need to lie" +
        outside(0, arrays_.table_columns * kBlock) + ", the reach of the block table");
  }
  for (int64_t i = 0; i * kBlock < end; ++i) {
    if (table[i] < 0 || table[i] >= blocks) {
      bad(at("block_tables", index, table[i]) + " for block " + std::to_string(i) + outside(0, blocks));
    }
    if ((i + 1) * kBlock > first) written_.push_back(table[i]);
  }
  for (int64_t row = begin, position = first; position < end; ++row, ++position) {
    if (arrays_.positions[row] != position) {
      bad(at("positions", row, arrays_.positions[row]) + ", but its sequence is at " + std::to_string(position));
    }
    slots_[row] = {table[position / kBlock], static_cast<int32_t>(position % kBlock)};
  }
  sequences_.push_back({begin, rows, first, table});
}

// Two sequences may read a block, but only one may write it: the text would depend on who comes last.
void Step::check_writers() {
  std::sort(written_.begin(), written_.end());
  const auto twice = std::adjacent_find(written_.begin(), written_.end());
  if (twice != written_.end()) bad("KV block " + std::to_string(*twice) + " is written twice");
}

void Step::check_logit_rows() const {
  int64_t least = 0;
  for (int64_t i = 0; i < arrays_.logit_rows_count; ++i) {
    const int64_t row = arrays_.logit_rows[i];
    if (row < least || row >= arrays_.rows) bad(at("logit_rows", i, row) + outside(least, arrays_.rows));
    least = row + 1;
  }
}

void Step::check_sampling(int64_t vocab) const {
  const StepArrays& a = arrays_;
  for (int64_t i = 0; i < a.logit_rows_count; ++i) {
    const bool good = std::isfinite(a.temperature[i]) && a.temperature[i] >= 0 && a.top_k[i] >= 0 && a.top_p[i] >= 0 &&
                      a.top_p[i] <= 1 && a.min_p[i] >= 0 && a.min_p[i] <= 1 && a.draw_positions[i] >= 0 &&
                      a.logprobs[i] >= -1 && a.logprobs[i] <= vocab;
    if (!good) bad("the sampling parameters of logit row " + std::to_string(i) + " are out of range");
    if (a.logprobs[i] > a.top_count) bad("no room for the log-probabilities of logit row " + std::to_string(i));
  }
}

SampleParams Step::sample_params(int64_t i) const {
  return {arrays_.temperature[i], arrays_.top_k[i], arrays_.top_p[i],
          arrays_.min_p[i],       arrays_.seeds[i], arrays_.draw_positions[i]};
}

}  // namespace lightwell
