// Packed matrices in Python, and the kernels that read them one by one, for tests.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>
#include <vector>

#include "isa.h"
#include "kernels/packed.h"
#include "packed_matrix.h"
#include "weight_memory.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lightwell {
namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Rows = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<nb::numpy, float>;
using Writable = nb::ndarray<nb::numpy, uint8_t>;
using View = nb::ndarray<nb::numpy, const uint8_t>;

const char* form_name(Form form) {
  constexpr const char* names[] = {"W4", "W8", "W8H", "BF16", "F16", "F32"};
  return names[static_cast<int>(form)];
}

std::shared_ptr<PackedMatrix> pack(Bytes data, const std::string& format, int64_t rows, int64_t columns) {
  const uint8_t* source = data.data();
  const int64_t size = static_cast<int64_t>(data.size());
  nb::gil_scoped_release release;
  return std::make_shared<PackedMatrix>(source, size, format, rows, columns);
}

std::shared_ptr<PackedMatrix> of_packed(Bytes packed, const std::string& format, int64_t rows, int64_t columns) {
  return PackedMatrix::of_packed(packed.data(), static_cast<int64_t>(packed.size()), format, rows, columns);
}

// Unwritten memory is zero, and not there before it is written.
Writable empty_weights(int64_t bytes) {
  if (bytes < 1) throw std::invalid_argument("weights of " + std::to_string(bytes) + " bytes");
  auto memory = std::make_unique<std::shared_ptr<uint8_t>>(weight_memory(bytes));
  uint8_t* data = memory->get();
  nb::capsule owner(memory.release(), [](void* p) noexcept { delete static_cast<std::shared_ptr<uint8_t>*>(p); });
  return Writable(data, {static_cast<size_t>(bytes)}, owner);
}

Floats to_array(std::unique_ptr<std::vector<float>> values, std::initializer_list<size_t> shape) {
  float* data = values->data();
  nb::capsule owner(values.release(), [](void* p) noexcept { delete static_cast<std::vector<float>*>(p); });
  return Floats(data, shape, owner);
}

// Rows padded with zeros to whole groups; 64-byte alignment is not needed of activations.
std::vector<float> padded_rows(const Rows& x, const Matrix& w) {
  if (static_cast<int64_t>(x.shape(1)) != w.columns)
    throw std::invalid_argument("x has " + std::to_string(x.shape(1)) + " columns, the matrix " +
                                std::to_string(w.columns));
  const int64_t rows = static_cast<int64_t>(x.shape(0)), stride = w.groups * kGroup;
  std::vector<float> padded(rows * stride, 0.0f);
  for (int64_t r = 0; r < rows; ++r)
    std::memcpy(padded.data() + r * stride, x.data() + r * w.columns, w.columns * sizeof(float));
  return padded;
}

// Whole groups quantized as kernels.h defines it, in plain scalar code.
struct QuantizedRows {
  std::vector<int8_t> values;
  std::vector<float> scales, sums;

  explicit QuantizedRows(const std::vector<float>& x) : values(x.size()), scales(x.size() / kGroup), sums(scales) {
    for (size_t g = 0; g < scales.size(); ++g) quantize_group(x.data() + g * kGroup, g);
  }

  void quantize_group(const float* x, size_t g) {
    float largest = 0;
    for (int i = 0; i < kGroup; ++i) largest = std::max(largest, std::fabs(x[i]));
    scales[g] = largest / 127.0f;
    int sum = 0;
    for (int i = 0; i < kGroup; ++i) {
      const float value = scales[g] > 0 ? std::nearbyint(x[i] / scales[g]) : 0.0f;
      values[g * kGroup + i] = static_cast<int8_t>(value);
      sum += static_cast<int>(value);
    }
    sums[g] = scales[g] * static_cast<float>(sum);
  }
};

// A range of tiles, all of them where tile_end is none.
int64_t checked_end(const Matrix& w, int64_t tile_begin, std::optional<int64_t> tile_end) {
  const int64_t end = tile_end.value_or(w.tiles);
  if (tile_begin < 0 || tile_begin > end || end > w.tiles)
    throw std::invalid_argument("tiles [" + std::to_string(tile_begin) + ", " + std::to_string(end) +
                                ") are not within " + std::to_string(w.tiles));
  return end;
}

Floats linear_int8(const PackedMatrix& matrix, Rows x, const std::string& isa, int64_t tile_begin,
                   std::optional<int64_t> tile_end) {
  const Matrix& w = matrix.matrix;
  if (is_plain(w.form))
    throw std::invalid_argument(std::string(form_name(w.form)) + " weights take float activations only");
  QuantizedRows rows(padded_rows(x, w));
  const Quantized a = {rows.values.data(), rows.scales.data(), rows.sums.data(), w.groups};
  const int64_t end = checked_end(w, tile_begin, tile_end), outputs = (end - tile_begin) * kTile;
  auto out = std::make_unique<std::vector<float>>(x.shape(0) * outputs, NAN);
  kernels_for(isa).linear_int8(w, tile_begin, end, a, static_cast<int64_t>(x.shape(0)), out->data(), outputs);
  return to_array(std::move(out), {x.shape(0), static_cast<size_t>(outputs)});
}

Floats linear_float(const PackedMatrix& matrix, Rows x, const std::string& isa, int64_t tile_begin,
                    std::optional<int64_t> tile_end) {
  const Matrix& w = matrix.matrix;
  const std::vector<float> rows = padded_rows(x, w);
  const int64_t end = checked_end(w, tile_begin, tile_end), outputs = (end - tile_begin) * kTile;
  auto out = std::make_unique<std::vector<float>>(x.shape(0) * outputs, NAN);
  kernels_for(isa).linear_float(w, tile_begin, end, rows.data(), w.groups * kGroup, static_cast<int64_t>(x.shape(0)),
                                out->data(), outputs);
  return to_array(std::move(out), {x.shape(0), static_cast<size_t>(outputs)});
}

Floats matrix_row(const PackedMatrix& matrix, int64_t row, const std::string& isa) {
  const Matrix& w = matrix.matrix;
  if (row < 0 || row >= w.rows)
    throw std::invalid_argument("row " + std::to_string(row) + " is not one of " + std::to_string(w.rows));
  auto out = std::make_unique<std::vector<float>>(w.columns, NAN);
  kernels_for(isa).matrix_row(w, row, out->data());
  return to_array(std::move(out), {static_cast<size_t>(w.columns)});
}

}  // namespace
}  // namespace lightwell

void bind_matrix(nb::module_& m) {
  using namespace lightwell;
  nb::class_<PackedMatrix>(m, "PackedMatrix", "A weight matrix packed for the kernels of every instruction set.")
      .def(nb::new_(&pack), "data"_a.noconvert(), "format"_a, "rows"_a, "columns"_a,
           "Packs uint8 data of row-major rows as the file stores them; releases the GIL meanwhile.")
      .def_static("of_packed", &of_packed, "packed"_a.noconvert(), "format"_a, "rows"_a, "columns"_a,
                  nb::keep_alive<0, 1>(), "Takes bytes as ``packed`` gave them, at a 64-byte boundary; copies nothing.")
      .def_prop_ro(
          "packed",
          [](const PackedMatrix& self) { return View(self.matrix.data, {static_cast<size_t>(self.bytes())}); },
          nb::rv_policy::reference_internal)
      .def_prop_ro("rows", [](const PackedMatrix& self) { return self.matrix.rows; })
      .def_prop_ro("columns", [](const PackedMatrix& self) { return self.matrix.columns; })
      .def_prop_ro("form", [](const PackedMatrix& self) { return form_name(self.matrix.form); })
      .def_prop_ro("nbytes", &PackedMatrix::bytes);
  m.attr("PACKING") = std::to_string(kPackingVersion) + "-" + std::to_string(kTile) + "x" + std::to_string(kGroup) +
                      "x" + std::to_string(kChunk);
  m.def("empty_weights", &empty_weights, "bytes"_a, "A uint8 array in huge pages, for packed bytes to be read into.");
  m.def("available_isas", &available_isas, "Instruction sets that this build and this CPU have, the best first.");
  m.def("linear_int8", &linear_int8, "matrix"_a, "x"_a.noconvert(), "isa"_a, "tile_begin"_a = 0,
        "tile_end"_a = nb::none(),
        "x (rows, columns) quantized to int8, times the matrix: (rows, 16 * tiles), zeros past the matrix's last row.");
  m.def("linear_float", &linear_float, "matrix"_a, "x"_a.noconvert(), "isa"_a, "tile_begin"_a = 0,
        "tile_end"_a = nb::none(), "The same with x as it is.");
  m.def("matrix_row", &matrix_row, "matrix"_a, "row"_a, "isa"_a, "One row as floats (columns).");
}
