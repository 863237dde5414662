// The row, attention and sampling kernels one by one, for tests: arrays in, arrays out; those of the cache in the float
// mode of a step. The last argument names the instruction set. A wrong type raises TypeError, a wrong shape or value
// ValueError.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "activation.h"
#include "float_mode.h"
#include "isa.h"
#include "kernels.h"
#include "kv_cache.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lightwell {
namespace {

template <typename T, int Dimensions>
using Input = nb::ndarray<const T, nb::ndim<Dimensions>, nb::c_contig, nb::device::cpu>;
using Row = Input<float, 1>;
using Rows = Input<float, 2>;

template <typename T>
using Output = nb::ndarray<nb::numpy, T>;

template <typename T>
Output<T> array(std::vector<T> values, std::initializer_list<size_t> shape) {
  auto* owned = new std::vector<T>(std::move(values));
  nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return Output<T>(owned->data(), shape, owner);
}

Output<float> array(std::vector<float> values) {
  const size_t n = values.size();
  return array(std::move(values), {n});
}

template <typename Array>
std::vector<float> copy(const Array& x) {
  return {x.data(), x.data() + x.size()};
}

void require(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
}

std::tuple<Output<int8_t>, Output<float>, Output<float>> quantize(const Row& x, const std::string& isa) {
  const size_t groups = (x.size() + kGroup - 1) / kGroup;
  std::vector<int8_t> values(groups * kGroup, 1);  // not zero: the kernel has to write the padding
  std::vector<float> scales(groups), sums(groups);
  const Quantized a{values.data(), scales.data(), sums.data(), static_cast<int64_t>(groups)};
  kernels_for(isa).quantize(x.data(), static_cast<int64_t>(x.size()), a, 0);
  return {array(std::move(values), {groups * kGroup}), array(std::move(scales)), array(std::move(sums))};
}

Output<float> rms_norm(const Row& x, const Row& weight, float eps, const std::string& isa) {
  require(x.size() > 0 && weight.size() == x.size(), "x and weight must have the same length, at least 1");
  std::vector<float> out = copy(x);
  kernels_for(isa).rms_norm(out.data(), weight.data(), eps, static_cast<int64_t>(out.size()), out.data());
  return array(std::move(out));
}

Output<float> add(const Row& x, const Row& y, const std::string& isa) {
  require(x.size() == y.size(), "x and y must have the same length");
  std::vector<float> out = copy(x);
  kernels_for(isa).add(out.data(), y.data(), static_cast<int64_t>(out.size()));
  return array(std::move(out));
}

Output<float> scale(const Row& x, float factor, const std::string& isa) {
  std::vector<float> out = copy(x);
  kernels_for(isa).scale(out.data(), factor, static_cast<int64_t>(out.size()));
  return array(std::move(out));
}

Output<float> gated(const Row& gate, const Row& up, const std::string& activation, const std::string& isa) {
  require(gate.size() == up.size(), "gate and up must have the same length");
  const Activation kind = activation_named(activation);
  std::vector<float> out = copy(gate);
  kernels_for(isa).gated(out.data(), up.data(), kind, static_cast<int64_t>(out.size()), out.data());
  return array(std::move(out));
}

Output<float> soft_cap(const Row& x, float cap, const std::string& isa) {
  require(cap > 0, "cap must be above 0");
  std::vector<float> out = copy(x);
  kernels_for(isa).soft_cap(out.data(), cap, static_cast<int64_t>(out.size()));
  return array(std::move(out));
}

// x [heads, head_dim]; cos and sin [dims / 2] of one position.
Output<float> rotary(const Rows& x, const Row& cos, const Row& sin, bool interleaved, const std::string& isa) {
  require(cos.size() == sin.size(), "cos and sin must have the same length");
  require(2 * cos.size() <= x.shape(1), "cos and sin must not be longer than half of a head");
  std::vector<float> out = copy(x);
  const int64_t dims = static_cast<int64_t>(2 * cos.size());
  kernels_for(isa).rotary(out.data(), static_cast<int64_t>(x.shape(0)), static_cast<int64_t>(x.shape(1)), dims,
                          interleaved, cos.data(), sin.data());
  return array(std::move(out), {x.shape(0), x.shape(1)});
}

// The bytes of an otherwise zero block of one KV head with one token in it (kernels.h has the layout).
Output<uint8_t> store_kv(const Row& key, const Row& value, int64_t slot, const std::string& kv_type,
                         const std::string& isa) {
  const FlushToZero mode;
  const int64_t head_dim = static_cast<int64_t>(key.size());
  require(head_dim % 16 == 0 && head_dim <= kMostHeadDim && value.size() == key.size(),
          "key and value must have the same length, a multiple of 16 up to 2048");
  require(slot >= 0 && slot < kBlock, "slot must be within 0..31");
  const KvType type = kv_type_named(kv_type);
  const size_t bytes = static_cast<size_t>(kv_head_bytes(type, head_dim));
  std::vector<uint8_t> block(bytes);
  kv_kernels(kernels_for(isa), type).store(key.data(), value.data(), head_dim, block.data(), slot);
  return array(std::move(block), {bytes});
}

// A paged cache of one layer with one KV head.
struct Cache {
  const KvKernels& kernels;
  int64_t head_dim, block_stride;
  std::vector<uint8_t> data;

  Cache(const KvKernels& kernels, KvType type, int64_t head_dim, int64_t blocks)
      : kernels(kernels),
        head_dim(head_dim),
        block_stride(kv_head_bytes(type, head_dim)),
        data(static_cast<size_t>(blocks * block_stride)) {}

  void store(int32_t block, int64_t slot, const float* key, const float* value) {
    kernels.store(key, value, head_dim, data.data() + block * block_stride, slot);
  }
};

// Every slot holds `stale`, then the tokens go to where the table says; those of blocks at -1 are left out.
Cache filled_cache(const KvKernels& kernels, KvType type, const Rows& keys, const Rows& values, const int32_t* table,
                   int64_t blocks, float stale) {
  const int64_t head_dim = static_cast<int64_t>(keys.shape(1)), tokens = static_cast<int64_t>(keys.shape(0));
  const int32_t cache_blocks = *std::max_element(table, table + blocks) + 1;
  Cache cache(kernels, type, head_dim, cache_blocks);
  const std::vector<float> old(static_cast<size_t>(head_dim), stale);
  for (int32_t block = 0; block < cache_blocks; ++block)
    for (int64_t slot = 0; slot < kBlock; ++slot) cache.store(block, slot, old.data(), old.data());
  for (int64_t t = 0; t < tokens; ++t) {
    const int32_t block = table[t / kBlock];
    if (block >= 0) cache.store(block, t % kBlock, keys.data() + t * head_dim, values.data() + t * head_dim);
  }
  return cache;
}

void run_item(const Kernels& kernels, KvType type, const AttentionItem& item, int64_t partitions) {
  const size_t floats = static_cast<size_t>(item.rows * item.heads * (item.head_dim + 2));
  std::vector<std::vector<float>> partials(static_cast<size_t>(partitions), std::vector<float>(floats, -1.0f));
  std::vector<const float*> pointers;
  for (int64_t part = partitions - 1; part >= 0; --part)
    kv_kernels(kernels, type).attention_part(item, part, partials[part].data());
  for (const auto& partial : partials) pointers.push_back(partial.data());
  kernels.attention_merge(item, pointers.data(), partitions);
}

void check_attention(const Input<float, 3>& q, const Rows& keys, const Rows& values, int64_t first_position,
                     int64_t window, const Input<int32_t, 1>& table, int64_t rows_per_item) {
  const int64_t head_dim = static_cast<int64_t>(q.shape(2)), tokens = static_cast<int64_t>(keys.shape(0));
  require(q.size() > 0 && head_dim % 16 == 0 && head_dim <= kMostHeadDim,
          "q must be [rows, heads, head_dim], not empty, head_dim a multiple of 16 up to 2048");
  require(keys.shape(1) == q.shape(2) && values.shape(1) == q.shape(2) && values.shape(0) == keys.shape(0),
          "keys and values must be [tokens, head_dim] with the head_dim of q");
  require(first_position >= 0 && window >= 0 && first_position + static_cast<int64_t>(q.shape(0)) <= tokens,
          "first_position and window must not be negative, and every row of q must have its token among the keys");
  require(rows_per_item >= 1 && rows_per_item <= kAttentionRows, "rows_per_item must be within 1..16");
  require(static_cast<int64_t>(table.size()) * kBlock >= tokens, "block_table must cover all tokens");
  const int64_t first_seen = window ? std::max<int64_t>(first_position - window + 1, 0) : 0;
  const int64_t last_seen = first_position + static_cast<int64_t>(q.shape(0)) - 1;
  for (int64_t block = first_seen / kBlock; block <= last_seen / kBlock; ++block)
    require(table.data()[block] >= 0, "block_table must have a block wherever a row of q sees a token");
}

// Rows of q [rows, heads, head_dim] at following positions, in items of `rows_per_item`; the partitions of each, last
// first, cover all tokens, seen or not.
Output<float> attention(const Input<float, 3>& q, const Rows& keys, const Rows& values, int64_t first_position,
                        int64_t window, float scale, float soft_cap, const std::optional<Row>& sinks,
                        const Input<int32_t, 1>& block_table, int64_t rows_per_item, float stale,
                        const std::string& kv_type, const std::string& isa) {
  check_attention(q, keys, values, first_position, window, block_table, rows_per_item);
  require(!sinks || sinks->size() == q.shape(1), "sinks must be one a head");
  const FlushToZero mode;
  const Kernels& kernels = kernels_for(isa);
  const KvType type = kv_type_named(kv_type);
  const int32_t* table = block_table.data();
  const Cache cache = filled_cache(kv_kernels(kernels, type), type, keys, values, table,
                                   static_cast<int64_t>(block_table.size()), stale);
  const int64_t rows = static_cast<int64_t>(q.shape(0)), heads = static_cast<int64_t>(q.shape(1));
  const int64_t stride = heads * cache.head_dim;
  const int64_t partitions = (static_cast<int64_t>(keys.shape(0)) + kPartition - 1) / kPartition;
  std::vector<float> out(q.size());
  for (int64_t row = 0; row < rows; row += rows_per_item) {
    const AttentionItem item{
        .q = q.data() + row * stride,
        .q_stride = stride,
        .rows = std::min(rows_per_item, rows - row),
        .heads = heads,
        .head_dim = cache.head_dim,
        .first_position = first_position + row,
        .window = window,
        .scale = scale,
        .soft_cap = soft_cap,
        .sinks = sinks ? sinks->data() : nullptr,
        .blocks = table,
        .cache = cache.data.data(),
        .block_stride = cache.block_stride,
        .next = {cache.data.data(), cache.data.data()},
        .out = out.data() + row * stride,
        .out_stride = stride,
    };
    run_item(kernels, type, item, partitions);
  }
  return array(std::move(out), {q.shape(0), q.shape(1), q.shape(2)});
}

// Edited and masked scores.
Output<float> constrain(const Row& scores, const Input<int32_t, 1>& tokens, const Row& factors, const Row& addends,
                        const std::optional<Input<uint32_t, 1>>& allowed, const std::string& isa) {
  const int64_t n = static_cast<int64_t>(scores.size());
  require(factors.size() == tokens.size() && addends.size() == tokens.size(), "edits must have the same length");
  require(std::all_of(tokens.data(), tokens.data() + tokens.size(), [&](int32_t t) { return t >= 0 && t < n; }),
          "tokens must be within the scores");
  require(!allowed || static_cast<int64_t>(allowed->size()) == (n + 31) / 32, "allowed must have a bit for each score");
  const Constraints constraints{static_cast<int64_t>(tokens.size()), tokens.data(), factors.data(), addends.data(),
                                allowed ? allowed->data() : nullptr};
  std::vector<float> out(scores.size());
  kernels_for(isa).constrain(scores.data(), n, constraints, out.data());
  return array(std::move(out));
}

int32_t sample(const Row& scores, float temperature, int32_t top_k, float top_p, float min_p, uint64_t seed,
               int64_t position, const std::string& isa) {
  require(scores.size() > 0, "there must be at least one score");
  const SampleParams params{temperature, top_k, top_p, min_p, seed, position};
  std::vector<float> work(2 * scores.size());
  return kernels_for(isa).sample(scores.data(), static_cast<int64_t>(scores.size()), params, work.data());
}

std::tuple<float, Output<int32_t>, Output<float>> logprobs(const Row& scores, int32_t token, int64_t k,
                                                           const std::string& isa) {
  const int64_t n = static_cast<int64_t>(scores.size());
  require(token >= 0 && token < n && k >= 0 && k <= n, "token and k must be within the scores");
  std::vector<int32_t> ids(static_cast<size_t>(k));
  std::vector<float> top(static_cast<size_t>(k));
  float chosen = 0.0f;
  kernels_for(isa).logprobs(scores.data(), n, token, k, &chosen, ids.data(), top.data());
  return {chosen, array(std::move(ids), {static_cast<size_t>(k)}), array(std::move(top))};
}

}  // namespace
}  // namespace lightwell

void bind_kernels(nb::module_& m) {
  using namespace lightwell;
  const auto x = "x"_a.noconvert(), y = "y"_a.noconvert(), scores = "scores"_a.noconvert();
  m.def("quantize", &quantize, x, "isa"_a, "(values int8, scales, sums) of one row in groups of 32");
  m.def("rms_norm", &rms_norm, x, "weight"_a.noconvert(), "eps"_a, "isa"_a);
  m.def("add", &add, x, y, "isa"_a);
  m.def("scale", &scale, x, "factor"_a, "isa"_a);
  m.def("gated", &gated, "gate"_a.noconvert(), "up"_a.noconvert(), "activation"_a, "isa"_a);
  m.def("soft_cap", &soft_cap, x, "cap"_a, "isa"_a);
  m.def("rotary", &rotary, x, "cos"_a.noconvert(), "sin"_a.noconvert(), "interleaved"_a, "isa"_a);
  m.def("store_kv", &store_kv, "key"_a.noconvert(), "value"_a.noconvert(), "slot"_a, "kv_type"_a, "isa"_a);
  m.def("attention", &attention, "q"_a.noconvert(), "keys"_a.noconvert(), "values"_a.noconvert(), nb::kw_only(),
        "first_position"_a, "window"_a, "scale"_a, "soft_cap"_a = 0.0f,
        "sinks"_a.noconvert().none() = nb::none(), "block_table"_a.noconvert(), "rows_per_item"_a, "stale"_a,
        "kv_type"_a, "isa"_a);
  m.def("constrain", &constrain, scores, nb::kw_only(), "tokens"_a.noconvert(), "factors"_a.noconvert(),
        "addends"_a.noconvert(), "allowed"_a.noconvert().none() = nb::none(), "isa"_a);
  m.def("sample", &sample, scores, nb::kw_only(), "temperature"_a, "top_k"_a, "top_p"_a, "min_p"_a, "seed"_a,
        "position"_a, "isa"_a);
  m.def("logprobs", &logprobs, scores, "token"_a, "k"_a, "isa"_a, "(chosen, ids of the k best, theirs)");
}
