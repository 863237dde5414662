// The plan as Python sees it: weights and shapes come in once, then one call a step, without the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "activation.h"
#include "isa.h"
#include "packed_matrix.h"
#include "plan.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lightwell {
namespace {

using Array = nb::ndarray<nb::ro>;
using Output = nb::ndarray<>;
using MaybeArray = std::optional<Array>;
using MaybeOutput = std::optional<Output>;
using Weight = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::vector<float> floats(const Weight& weight) { return {weight.data(), weight.data() + weight.shape(0)}; }

std::vector<float> floats(const std::optional<Weight>& weight) {
  return weight ? floats(*weight) : std::vector<float>{};
}

// The data of a C-contiguous array of this type and shape; -1 stands for any length.
template <typename T, typename A>
T* data(const A& array, const char* name, const char* type, std::initializer_list<int64_t> shape) {
  bool fits = array.dtype() == nb::dtype<std::remove_const_t<T>>() && array.ndim() == shape.size();
  int64_t stride = 1;
  for (size_t i = shape.size(); fits && i-- > 0;) {
    const int64_t length = array.shape(i), wanted = shape.begin()[i];
    const bool follows = length <= 1 || array.size() == 0 || array.stride(i) == stride;  // nothing follows anything
    fits = (wanted < 0 || length == wanted) && follows;
    stride *= length;
  }
  if (fits) return static_cast<T*>(array.data());
  std::string text;
  for (const int64_t length : shape)
    text += (text.empty() ? "" : ", ") + (length < 0 ? std::string("any") : std::to_string(length));
  throw std::invalid_argument(std::string(name) + " must be a C-contiguous array of " + type + " with shape (" + text +
                              ")");
}

const int32_t* int32s(const Array& array, const char* name, std::initializer_list<int64_t> shape) {
  return data<const int32_t>(array, name, "int32", shape);
}

const float* float32s(const Array& array, const char* name, std::initializer_list<int64_t> shape) {
  return data<const float>(array, name, "float32", shape);
}

int64_t length(const Array& array) { return array.ndim() > 0 ? static_cast<int64_t>(array.shape(0)) : 0; }

using Edits = std::tuple<Array, Array, Array, Array>;  // starts, tokens, factors, addends
using Masks = std::tuple<Array, Array, nb::callable>;  // rows, bits, wait

void take_edits(const Edits& edits, StepArrays& a) {
  const auto& [starts, tokens, factors, addends] = edits;
  a.edits = length(tokens);
  a.edit_starts = int32s(starts, "edit starts", {a.logit_rows_count + 1});
  a.edit_tokens = int32s(tokens, "edit tokens", {a.edits});
  a.edit_factors = float32s(factors, "edit factors", {a.edits});
  a.edit_addends = float32s(addends, "edit addends", {a.edits});
}

void take_masks(const Masks& masks, int64_t vocab, StepArrays& a) {
  const auto& [rows, bits, wait] = masks;
  a.masks = length(bits);
  a.mask_words = (vocab + 31) / 32;
  a.mask_rows = int32s(rows, "mask rows", {a.logit_rows_count});
  a.mask_bits = data<const uint32_t>(bits, "mask bits", "uint32", {a.masks, a.mask_words});
}

double execute(Plan& plan, const Array& tokens, const Array& positions, const Array& starts, const Array& block_tables,
               const MaybeArray& copies, const Array& logit_rows, const Array& temperature, const Array& top_k,
               const Array& top_p, const Array& min_p, const Array& seeds, const Array& draw_positions,
               const Array& logprobs, const Output& drawn, const MaybeOutput& chosen, const MaybeOutput& top_ids,
               const MaybeOutput& top, const MaybeOutput& logits, const std::optional<Array>& given,
               const std::optional<Edits>& edits, const std::optional<Masks>& masks,
               const std::optional<Array>& hidden_rows, const MaybeOutput& hidden) {
  StepArrays a{};
  const int64_t rows = length(tokens), sequences = length(block_tables), n = length(logit_rows);
  a.rows = rows;
  a.sequences = sequences;
  a.logit_rows_count = n;
  a.tokens = int32s(tokens, "tokens", {rows});
  a.positions = int32s(positions, "positions", {rows});
  a.starts = int32s(starts, "starts", {sequences + 1});
  a.block_tables = int32s(block_tables, "block_tables", {sequences, -1});
  a.table_columns = block_tables.shape(1);
  if (copies) a.copies = int32s(*copies, "copies", {-1, 2});
  a.copies_count = copies ? length(*copies) : 0;
  a.logit_rows = int32s(logit_rows, "logit_rows", {n});
  a.temperature = float32s(temperature, "temperature", {n});
  a.top_k = int32s(top_k, "top_k", {n});
  a.top_p = float32s(top_p, "top_p", {n});
  a.min_p = float32s(min_p, "min_p", {n});
  a.seeds = data<const uint64_t>(seeds, "seeds", "uint64", {n});
  a.draw_positions = int32s(draw_positions, "sampling positions", {n});
  a.logprobs = int32s(logprobs, "logprobs", {n});
  a.drawn = data<int32_t>(drawn, "drawn", "int32", {n});
  a.top_count = -1;
  if (chosen && top_ids && top) {
    a.chosen = data<float>(*chosen, "chosen", "float32", {n});
    a.top_ids = data<int32_t>(*top_ids, "top_ids", "int32", {n, -1});
    a.top_count = top_ids->shape(1);
    a.top = data<float>(*top, "top", "float32", {n, a.top_count});
  }
  if (logits) a.logits = data<float>(*logits, "logits", "float32", {n, plan.vocab()});
  if (given) a.given = int32s(*given, "given", {n});
  if (edits) take_edits(*edits, a);
  if (hidden_rows && hidden) {
    a.hidden_rows_count = length(*hidden_rows);
    a.hidden_rows = int32s(*hidden_rows, "hidden_rows", {a.hidden_rows_count});
    a.hidden = data<float>(*hidden, "hidden", "float32", {a.hidden_rows_count, plan.hidden_columns()});
  }
  if (!masks) {
    const nb::gil_scoped_release released;
    return plan.execute(a);
  }
  take_masks(*masks, plan.vocab(), a);
  const nb::gil_scoped_release released;
  return plan.execute(a, [&] {
    const nb::gil_scoped_acquire held;
    std::get<nb::callable>(*masks)();
  });
}

using MaybeWeight = std::optional<Weight>;

void bind_rows(nb::class_<Plan>& plan) {
  plan.def("embed", &Plan::embed, "table"_a, "scale"_a, "out"_a)
      .def(
          "norm", [](Plan& p, int x, const Weight& w, float eps, int out) { p.norm(x, floats(w), eps, out); }, "x"_a,
          "weight"_a, "eps"_a, "out"_a)
      .def(
          "add_norm", [](Plan& p, int x, const Weight& w, float eps, int out) { p.add_norm(x, floats(w), eps, out); },
          "x"_a, "weight"_a, "eps"_a, "out"_a, "out += norm(x)")
      .def("add", &Plan::add, "x"_a, "out"_a, "out += x")
      .def("put", &Plan::put, "x"_a, "out"_a, "out = x, in the forms that out has");
}

void experts(Plan& plan, int x, const Projection& router,
             const std::vector<std::tuple<Projection, Projection, Projection>>& experts, int64_t per_row,
             bool normalized, const std::string& activation, bool quantize, int out) {
  std::vector<Expert> copies;
  for (const auto& [gate, up, down] : experts) copies.push_back({gate, up, down});
  plan.experts(x, router, std::move(copies), {per_row, normalized}, activation_named(activation), quantize, out);
}

void bind_linear(nb::class_<Plan>& plan) {
  plan.def("linear", &Plan::linear, "x"_a, "projection"_a, "out"_a, "add"_a)
      .def(
          "gated",
          [](Plan& p, int x, const Projection& gate, const Projection& up, const std::string& activation, int out) {
            p.gated(x, gate, up, activation_named(activation), out);
          },
          "x"_a, "gate"_a, "up"_a, "activation"_a, "out"_a)
      .def(
          "qkv",
          [](Plan& p, int x, const Projection& q, const Projection& k, const Projection& v, const MaybeWeight& q_norm,
             const MaybeWeight& k_norm, float eps, std::optional<int> rope, int layer, int out) {
            const Rope* rotation = rope ? &p.rope_of(*rope) : nullptr;
            p.qkv(x, {q, floats(q_norm), eps, rotation}, {k, floats(k_norm), eps, rotation}, v, layer, out);
          },
          "x"_a, "q"_a, "k"_a, "v"_a, "q_norm"_a.none(), "k_norm"_a.none(), "eps"_a, "rope"_a.none(), "layer"_a,
          "out"_a)
      .def("experts", &experts, "x"_a, "router"_a, "experts"_a, "per_row"_a, "normalized"_a, "activation"_a,
           "quantize"_a, "out"_a, "Experts are (gate, up, down).")
      .def(
          "attention",
          [](Plan& p, int q, int layer, float scale, int64_t window, float soft_cap, const MaybeWeight& sinks, int out) {
            p.attention(q, layer, {scale, soft_cap, floats(sinks)}, window, out);
          },
          "q"_a, "layer"_a, "scale"_a, "window"_a, "soft_cap"_a, "sinks"_a.none(), "out"_a)
      .def(
          "logits",
          [](Plan& p, int x, const Weight& norm, float eps, const Projection& head, float soft_cap, bool quantize) {
            p.logits(x, floats(norm), eps, head, soft_cap, quantize);
          },
          "x"_a, "norm"_a, "eps"_a, "head"_a, "soft_cap"_a, "quantize"_a);
}

void bind_running(nb::class_<Plan>& plan) {
  plan.def("pin", &Plan::pin, "cpus"_a);
  plan.def("allocate", &Plan::allocate, "blocks"_a)
      .def("offload_to", &Plan::offload_to, "file"_a, "slots"_a)
      .def_prop_ro("kv_bytes_per_block", &Plan::kv_bytes_per_block)
      .def("workspace_bytes", &Plan::workspace_bytes, "tokens"_a, "logit_rows"_a, "context"_a)
      .def("profile", &Plan::profile, "Seconds spent so far, by kind of op.")
      .def("execute", &execute, "tokens"_a, "positions"_a, "starts"_a, "block_tables"_a, "copies"_a.none(),
           "logit_rows"_a, "temperature"_a, "top_k"_a, "top_p"_a, "min_p"_a, "seeds"_a, "draw_positions"_a,
           "logprobs"_a, "drawn"_a, "chosen"_a.none(), "top_ids"_a.none(), "top"_a.none(), "logits"_a.none(),
           "given"_a.none(), "edits"_a.none(), "masks"_a.none(), "hidden_rows"_a.none(), "hidden"_a.none(),
           "Run one step and write its results into the arrays from `drawn` to `logits`, and into `hidden`. Edits are "
           "(starts, tokens, factors, addends), masks (rows, bits, wait). Returns the seconds that it took.");
}

}  // namespace
}  // namespace lightwell

void bind_plan(nb::module_& m) {
  using namespace lightwell;
  nb::class_<Projection>(m, "Projection", "A packed matrix and, where there is one, its bias.")
      .def(
          "__init__",
          [](Projection* self, std::shared_ptr<const PackedMatrix> weight, const MaybeWeight& bias) {
            new (self) Projection{std::move(weight), floats(bias)};
          },
          "weight"_a, "bias"_a.none());
  nb::class_<Plan> plan(m, "Plan", "A model's ops in order, and the call that runs a step through all of them.");
  plan.def(
          "__init__",
          [](Plan* self, const std::string& isa, int threads, int64_t vocab, int64_t layers, int64_t heads,
             int64_t kv_heads, int64_t head_dim, const std::string& kv_type) {
            new (self)
                Plan(kernels_for(isa), threads, {vocab, layers, heads, kv_heads, head_dim, kv_type_named(kv_type)});
          },
          "isa"_a, "threads"_a, "vocab"_a, "layers"_a, "heads"_a, "kv_heads"_a, "head_dim"_a, "kv_type"_a)
      .def("buffer", &Plan::buffer, "columns"_a, "floats"_a, "quantized"_a)
      .def("rope", &Plan::rope, "frequencies"_a, "factor"_a, "interleaved"_a);
  bind_rows(plan);
  bind_linear(plan);
  bind_running(plan);
}
