// The machine's limits, for `lightwell bench machine` and the shares that the benchmarks print.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "machine.h"

namespace nb = nanobind;
using namespace nb::literals;

void bind_machine(nb::module_& m) {
  using namespace lightwell;
  const auto release = nb::call_guard<nb::gil_scoped_release>();
  m.def("read_rates", &read_rates, "bytes"_a, "cpus"_a, "runs"_a, release,
        "Bytes per second of reading a working set of `bytes` with one thread on each of `cpus`, by run.");
  m.def("peak_formats", &peak_formats, "(instruction set, format) pairs that operation_rates can measure here.");
  m.def("operation_rates", &operation_rates, "isa"_a, "format"_a, "cpus"_a, "runs"_a, release,
        "Multiplications and additions per second, by run.");
}
