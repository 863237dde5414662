// The kernels compiled for one instruction set (see CMakeLists.txt for the flags): this file only fills the table.
#define LIGHTWELL_ISA avx2

#include "kernels/attention.h"
#include "kernels/linear.h"
#include "kernels/rows.h"
#include "kernels/sample.h"
#include "kernels/table.h"

namespace lightwell {
const Kernels* avx2_kernels() { return &avx2::table; }
}  // namespace lightwell
