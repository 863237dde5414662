// The names of activations, as ModelSpec has them.
#pragma once

#include <stdexcept>
#include <string>

#include "kernels.h"

namespace lightwell {

// Throws std::invalid_argument for a name that is none.
inline Activation activation_named(const std::string& name) {
  if (name == "silu") return Activation::Silu;
  if (name == "gelu_tanh") return Activation::GeluTanh;
  if (name == "clamped_swiglu") return Activation::ClampedSwiglu;
  throw std::invalid_argument("activation must be 'silu', 'gelu_tanh' or 'clamped_swiglu', and is '" + name + "'");
}

}  // namespace lightwell
