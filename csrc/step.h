// One step as the ops read it: the caller's arrays, checked, and what follows from them.
// Nothing in a step is believed: ids, positions and rows become addresses.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels.h"

namespace lightwell {

// The caller's arrays (see StepInput, SamplingRows and StepOutput in runtimes/base.py).
struct StepArrays {
  int64_t rows, sequences, table_columns, logit_rows_count, hidden_rows_count;
  const int32_t *tokens, *positions;  // [rows]
  const int32_t* starts;              // [sequences + 1]
  const int32_t* block_tables;        // [sequences][table_columns]
  int64_t copies_count;
  const int32_t* copies;              // [copies_count][2]
  const int32_t* hidden_rows;         // [hidden_rows_count]
  const int32_t* logit_rows;          // [logit_rows_count], as is everything below

  const float* temperature;
  const int32_t* top_k;
  const float *top_p, *min_p;
  const uint64_t* seeds;
  const int32_t* draw_positions;
  const int32_t* logprobs;

  const int32_t* given;        // null: every row draws
  const int32_t* edit_starts;  // [logit_rows_count + 1], null where nothing is edited, as are the three below
  const int32_t* edit_tokens;  // [edits]
  const float *edit_factors, *edit_addends;
  int64_t edits;
  const int32_t* mask_rows;   // null where nothing is masked, as is mask_bits
  const uint32_t* mask_bits;  // [masks][mask_words], complete only when the first token is drawn
  int64_t masks, mask_words;

  int32_t* drawn;
  float* chosen;     // these three null where no row wants log-probabilities
  int32_t* top_ids;  // [logit_rows_count][top_count]
  float* top;
  int64_t top_count;
  float* logits;  // [logit_rows_count][vocab] or null
  float* hidden;  // [hidden_rows_count][columns]
};

// Rows of the step that follow one another in one text.
struct Sequence {
  int64_t first_row, rows, first_position;
  const int32_t* blocks;
};

// Where a row's key and value go.
struct KvSlot {
  int32_t block, slot;
};

class Step {
 public:
  // Takes the arrays, which must outlive the step. Throws std::invalid_argument, and has read and written nothing out
  // of bounds, where they are not a step that a model of this vocabulary with this many KV blocks and offload slots can
  // compute.
  void take(const StepArrays& arrays, int64_t vocab, int64_t blocks, int64_t slots);

  const StepArrays& arrays() const { return arrays_; }
  int64_t rows() const { return arrays_.rows; }
  int64_t logit_rows() const { return arrays_.logit_rows_count; }
  int64_t hidden_rows() const { return arrays_.hidden_rows_count; }
  const std::vector<Sequence>& sequences() const { return sequences_; }
  KvSlot slot(int64_t row) const { return slots_[row]; }
  SampleParams sample_params(int64_t logit_row) const;
  Constraints constraints(int64_t logit_row) const;
  int32_t given(int64_t logit_row) const { return arrays_.given ? arrays_.given[logit_row] : -1; }

 private:
  void take_sequences(int64_t blocks);
  void take_sequence(int64_t index, int64_t blocks);
  void check_writers();
  void check_copies(int64_t blocks, int64_t slots) const;
  void check_rows(const char* name, const int32_t* rows, int64_t count) const;
  void check_sampling(int64_t vocab) const;
  void check_edits(int64_t vocab) const;
  void check_given_and_masks(int64_t vocab) const;

  StepArrays arrays_{};
  std::vector<Sequence> sequences_;
  std::vector<KvSlot> slots_;     // by row
  std::vector<int32_t> written_;  // blocks that receive keys and values, once for each sequence
};

}  // namespace lightwell
