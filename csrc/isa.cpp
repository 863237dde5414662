#include "isa.h"

#include <stdexcept>

namespace lightwell {
namespace {

std::vector<const Kernels*> supported() {
  std::vector<const Kernels*> found;
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16"))
    found.push_back(avx512_kernels());
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"))
    found.push_back(avx2_kernels());
#endif
  found.push_back(portable_kernels());
  return found;
}

}  // namespace

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  for (const Kernels* kernels : supported()) names.emplace_back(kernels->name);
  return names;
}

const Kernels& kernels_for(const std::string& name) {
  std::string names;
  for (const Kernels* kernels : supported()) {
    if (name == kernels->name) return *kernels;
    names += (names.empty() ? "" : ", ") + std::string(kernels->name);
  }
  throw std::invalid_argument("instruction set '" + name + "' is not available on this machine; it has: " + names);
}

}  // namespace lightwell
