// The kernels of AVX-512, with linear layers that use AMX where there are rows enough (see CMakeLists.txt for the flags).
#define LIGHTWELL_ISA amx

#include "kernels/linear.h"

namespace lightwell {

const Kernels* amx_kernels() {
  static Kernels table;  // not filled before main: that code would run on every CPU
  table = *avx512_kernels();
  table.name = "amx";  // and all of linear.h, which this file compiles anyway
  table.linear_int8 = amx::linear_int8;
  table.linear_float = amx::linear_float;
  table.matrix_row = amx::matrix_row;
  return &table;
}

}  // namespace lightwell
