// Kernels on rows of activations: quantize, normalise, add, gate, rotate.
#pragma once

#include "../kernels.h"
#include "vec.h"

namespace lightwell::LIGHTWELL_ISA {

static void quantize_group(const float* x, int8_t* values, float* scale, float* sum_out) {
  const float amax = largest_magnitude(x, kGroup);
  const bool usable = amax >= kSmallestQuantized && amax <= kLargestFloat;
  const Floats factor = broadcast(usable ? 127.0f / amax : 0.0f);
  const Ints keep = Ints{} - static_cast<int32_t>(usable);  // NaN and infinity times 0 are no integers
  Ints q[kGroup / kLanes], total{};
  for (int i = 0; i < kGroup / kLanes; ++i) {
    q[i] = nearest(load(x + i * kLanes) * factor) & keep;
    total += q[i];
  }
  store_bytes(values, q);
  *scale = amax < kSmallestQuantized ? 0.0f : amax / 127.0f;  // an infinite or NaN group keeps such a scale
  *sum_out = *scale * static_cast<float>(sum(total));
}

static void quantize(const float* x, int64_t columns, const Quantized& a, int64_t row) {
  int8_t* values = a.values + row * a.groups * kGroup;
  float* scales = a.scales + row * a.groups;
  float* sums = a.sums + row * a.groups;
  for (int64_t g = 0; g < a.groups; ++g) {
    const int64_t left = columns - g * kGroup;
    const float* group = x + g * kGroup;
    float padded[kGroup] = {};
    if (left < kGroup) {
      if (left > 0) memcpy(padded, group, static_cast<size_t>(left) * sizeof(float));
      group = padded;
    }
    quantize_group(group, values + g * kGroup, scales + g, sums + g);
  }
}

static float sum_of_squares(const float* x, int64_t n) {
  Floats part[4] = {};  // independent chains; which element goes where depends on n alone
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    for (int j = 0; j < 4; ++j) {
      const Floats v = load(x + i + j * kLanes);
      part[j] = fma(v, v, part[j]);
    }
  }
  for_vectors(n - i, [&](int64_t at, int64_t count) {
    const Floats v = load(x + i + at, count);
    part[0] = fma(v, v, part[0]);
  });
  return sum((part[0] + part[1]) + (part[2] + part[3]));
}

static void rms_norm(const float* x, const float* weight, float eps, int64_t n, float* out) {
  const float mean = sum_of_squares(x, n) / static_cast<float>(n);
  const float factor = 1.0f / __builtin_sqrtf(mean + eps);
  for (int64_t i = 0; i < n; ++i) out[i] = x[i] * factor * weight[i];
}

static void add(float* x, const float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] += y[i];
}

static void scale(float* x, float factor, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] *= factor;
}

LIGHTWELL_INLINE Floats silu(Floats x) { return x * sigmoid(x); }

// x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), as (1 + tanh(u)) / 2 = sigmoid(2 u).
LIGHTWELL_INLINE Floats gelu_tanh(Floats x) {
  return x * sigmoid(1.59576912f * (x * fma(x * x, broadcast(0.044715f), broadcast(1.0f))));
}

template <typename Function>
LIGHTWELL_INLINE void gated_by(Function function, const float* gate, const float* up, int64_t n, float* out) {
  for_vectors(n, [&](int64_t i, int64_t count) {
    store(out + i, function(load(gate + i, count), load(up + i, count)), count);
  });
}

// As gpt-oss has it: both sides clamped, and one more of `up`.
LIGHTWELL_INLINE Floats clamped_swiglu(Floats gate, Floats up) {
  const Floats limit = broadcast(7.0f), g = min(limit, gate), u = max(-limit, min(limit, up));  // NaN stays NaN
  return g * sigmoid(1.702f * g) * (u + 1.0f);
}

static void gated(const float* gate, const float* up, Activation activation, int64_t n, float* out) {
  if (activation == Activation::Silu) {
    gated_by([](Floats g, Floats u) { return silu(g) * u; }, gate, up, n, out);
  } else if (activation == Activation::GeluTanh) {
    gated_by([](Floats g, Floats u) { return gelu_tanh(g) * u; }, gate, up, n, out);
  } else {
    gated_by([](Floats g, Floats u) { return clamped_swiglu(g, u); }, gate, up, n, out);
  }
}

static void soft_cap(float* x, float cap, int64_t n) {
  for_vectors(n, [&](int64_t i, int64_t count) { store(x + i, soft_capped(load(x + i, count), cap), count); });
}

// Partners are neighbours: (0, 1), (2, 3), ...
static void rotate_pairs(float* __restrict x, int64_t half, const float* __restrict cos, const float* __restrict sin) {
  for (int64_t i = 0; i < half; ++i) {
    const float a = x[2 * i], b = x[2 * i + 1];
    x[2 * i] = a * cos[i] - b * sin[i];
    x[2 * i + 1] = a * sin[i] + b * cos[i];
  }
}

// Partners are half the rotated width apart.
static void rotate_halves(float* __restrict x, int64_t half, const float* __restrict cos, const float* __restrict sin) {
  for (int64_t i = 0; i < half; ++i) {
    const float a = x[i], b = x[i + half];
    x[i] = a * cos[i] - b * sin[i];
    x[i + half] = a * sin[i] + b * cos[i];
  }
}

static void rotary(float* x, int64_t heads, int64_t head_dim, int64_t dims, bool interleaved, const float* cos,
                   const float* sin) {
  const auto rotate = interleaved ? rotate_pairs : rotate_halves;
  for (int64_t h = 0; h < heads; ++h) rotate(x + h * head_dim, dims / 2, cos, sin);
}

}  // namespace lightwell::LIGHTWELL_ISA
