// Which kernels this CPU can run, and how one is chosen.
#pragma once

#include <string>
#include <vector>

#include "kernels.h"

namespace lightwell {

// Names of the instruction sets that this build and this CPU have, the best first; "portable" is always the last.
std::vector<std::string> available_isas();

// The kernels of that name. Throws std::invalid_argument, naming what is available, where it is not one of them.
const Kernels& kernels_for(const std::string& name);

}  // namespace lightwell
