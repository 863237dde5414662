#include "step.h"

#include <algorithm>
#include <cmath>
#include <limits>
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

void Step::take(const StepArrays& arrays, int64_t vocab, int64_t blocks, int64_t slots) {
  arrays_ = arrays;
  for (int64_t row = 0; row < arrays.rows; ++row) {
    const int64_t token = arrays.tokens[row];
    if (token < 0 || token >= vocab) bad(at("tokens", row, token) + outside(0, vocab));
  }
  take_sequences(blocks);
  check_writers();
  check_copies(blocks, slots);
  check_rows("logit_rows", arrays.logit_rows, arrays.logit_rows_count);
  check_rows("hidden_rows", arrays.hidden_rows, arrays.hidden_rows_count);
  check_sampling(vocab);
  check_edits(vocab);
  check_given_and_masks(vocab);
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

void Step::check_copies(int64_t blocks, int64_t slots) const {
  for (int64_t i = 0; i < arrays_.copies_count; ++i) {
    const int64_t source = arrays_.copies[2 * i], target = arrays_.copies[2 * i + 1];
    for (const int64_t end : {source, target}) {
      if (end < 0 || end >= blocks + slots) bad(at("copies", i, end) + outside(0, blocks + slots));
    }
    if (source == target || std::min(source, target) >= blocks)
      bad(at("copies", i, source) + " to " + std::to_string(target) + ", of which neither or the same is a KV block");
  }
}

void Step::check_rows(const char* name, const int32_t* rows, int64_t count) const {
  int64_t least = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = rows[i];
    if (row < least || row >= arrays_.rows) bad(at(name, i, row) + outside(least, arrays_.rows));
    least = row;  // a row may have several entries
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

void Step::check_edits(int64_t vocab) const {
  const StepArrays& a = arrays_;
  if (!a.edit_starts) return;
  for (int64_t i = 0, least = 0; i <= a.logit_rows_count; ++i) {
    const int64_t start = a.edit_starts[i], most = i == 0 ? 0 : a.edits;
    if (start < least || start > most) bad(at("edit starts", i, start) + outside(least, most + 1));
    least = start;
  }
  if (const int64_t last = a.edit_starts[a.logit_rows_count]; last != a.edits)
    bad(at("edit starts", a.logit_rows_count, last) + ", but there are " + std::to_string(a.edits) + " edits");
  for (int64_t e = 0; e < a.edits; ++e) {
    const int64_t token = a.edit_tokens[e];
    if (token < 0 || token >= vocab) bad(at("edit tokens", e, token) + outside(0, vocab));
    if (!std::isnormal(a.edit_factors[e]) || a.edit_factors[e] < 0)
      bad("edit factors[" + std::to_string(e) + "] is not a normal number above 0");
    if (!(a.edit_addends[e] <= std::numeric_limits<float>::max()))
      bad("edit addends[" + std::to_string(e) + "] is neither finite nor -inf");
  }
}

void Step::check_given_and_masks(int64_t vocab) const {
  const StepArrays& a = arrays_;
  for (int64_t i = 0; i < a.logit_rows_count; ++i) {
    if (given(i) < -1 || given(i) >= vocab) bad(at("given", i, given(i)) + outside(-1, vocab));
    if (a.mask_rows && (a.mask_rows[i] < -1 || a.mask_rows[i] >= a.masks))
      bad(at("mask rows", i, a.mask_rows[i]) + outside(-1, a.masks));
  }
}

SampleParams Step::sample_params(int64_t i) const {
  return {arrays_.temperature[i], arrays_.top_k[i], arrays_.top_p[i],
          arrays_.min_p[i],       arrays_.seeds[i], arrays_.draw_positions[i]};
}

Constraints Step::constraints(int64_t i) const {
  const StepArrays& a = arrays_;
  Constraints found{};
  if (a.edit_starts) {
    const int64_t start = a.edit_starts[i];
    found = {a.edit_starts[i + 1] - start, a.edit_tokens + start, a.edit_factors + start, a.edit_addends + start, nullptr};
  }
  if (a.mask_rows && a.mask_rows[i] >= 0) found.allowed = a.mask_bits + a.mask_rows[i] * a.mask_words;
  return found;
}

}  // namespace lightwell
