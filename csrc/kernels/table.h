// The table of this instruction set's kernels; the includer has defined LIGHTWELL_ISA and included all of them.
#pragma once

#define LIGHTWELL_STRING_(x) #x
#define LIGHTWELL_STRING(x) LIGHTWELL_STRING_(x)

namespace lightwell::LIGHTWELL_ISA {

static const Kernels table = {
    .name = LIGHTWELL_STRING(LIGHTWELL_ISA),
    .linear_int8 = linear_int8,
    .linear_float = linear_float,
    .matrix_row = matrix_row,
    .quantize = quantize,
    .rms_norm = rms_norm,
    .add = add,
    .scale = scale,
    .gated = gated,
    .soft_cap = soft_cap,
    .rotary = rotary,
    .kv = {{store_halves_kv, attention_part<Halves>}, {store_bytes_kv, attention_part<Bytes>}},
    .attention_merge = attention_merge,
    .constrain = constrain,
    .sample = sample,
    .logprobs = logprobs,
};

}  // namespace lightwell::LIGHTWELL_ISA
