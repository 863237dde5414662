#include "isa.h"

#include <stdexcept>

#if defined(LIGHTWELL_AMX)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace lightwell {
namespace {

#if defined(LIGHTWELL_AMX)
// Tile registers are 8 KiB that each thread's switch may have to save: Linux gives them to a process that asks.
bool tiles_permitted() {
  constexpr long kAskForState = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  static const bool given = syscall(SYS_arch_prctl, kAskForState, kTileData) == 0;
  return given;
}
#endif

std::vector<const Kernels*> supported() {
  std::vector<const Kernels*> found;
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                    __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16");
#if defined(LIGHTWELL_AMX)
  if (wide && __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-int8") && tiles_permitted())
    found.push_back(amx_kernels());
#endif
  if (wide) found.push_back(avx512_kernels());
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
