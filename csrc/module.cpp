// The Python module _native: matrices, kernels one by one (for tests), the plan that runs a whole step, and
// the machine's limits.
#include <nanobind/nanobind.h>

namespace nb = nanobind;

void bind_matrix(nb::module_& m);   // bind_matrix.cpp: pack a tensor
void bind_kernels(nb::module_& m);  // bind_kernels.cpp: each kernel by itself
void bind_plan(nb::module_& m);     // bind_plan.cpp: record a model, run a step
void bind_machine(nb::module_& m);  // bind_machine.cpp: what this machine can do at most

NB_MODULE(_native, m) {
  m.doc() = "Native CPU runtime of Lightwell";
  bind_matrix(m);
  bind_kernels(m);
  bind_plan(m);
  bind_machine(m);
}
