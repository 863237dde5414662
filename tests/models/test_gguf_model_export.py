"""Folders of every family as GGUF: the gguf package's names, the same model when read back, the same scores."""

import dataclasses

import gguf
import numpy as np
import pytest
from gguf.constants import MODEL_ARCH, Keys

from lightwell.checkpoints import open_checkpoint
from lightwell.checkpoints.gguf_writer import encode_key, write_gguf
from lightwell.checkpoints.spec import RopeScaling
from lightwell.errors import CheckpointError
from lightwell.models.gguf_export import differences, gguf_keys, gguf_tensors
from lightwell.runtimes.reference import ReferenceRuntime
from tests.checkpoints.hf_folder import model_arrays, write_model
from tests.checkpoints.test_hf_models import gpt_oss_arrays
from tests.steps import Chunk, step_of

LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
LONGROPE = {"long_factor": [1.0, 4.0], "short_factor": [1.0, 1.5], "factor": 4.0}
GEMMA = {"head_dim": 4, "sliding_window": 3, "query_pre_attn_scalar": 4, "rope_theta": 20_000.0}
EXPERTS = {"num_experts_per_tok": 2, "num_local_experts": 3}


def rope(kind, **fields):
    return {"rope_scaling": {"rope_type": kind, **fields}}


CASES = {  # architecture, model class, what the configuration says besides, tensors
    "llama": ("llama", "LlamaForCausalLM", {}, {}),
    "untied": ("llama", "LlamaForCausalLM", {"tie_word_embeddings": False}, {"head": True}),
    "biases": ("llama", "LlamaForCausalLM", {"attention_bias": True}, {"biases": "qkvo"}),
    "linear": ("llama", "LlamaForCausalLM", rope("linear", factor=2.0), {}),
    "llama3": ("llama", "LlamaForCausalLM", rope("llama3", **LLAMA3), {}),
    "yarn": ("llama", "LlamaForCausalLM", rope("yarn", factor=4.0, attention_factor=1.3, beta_fast=20.0), {}),
    "mistral": ("llama", "MistralForCausalLM", {"sliding_window": "null"}, {}),
    "mixtral": ("mixtral", "MixtralForCausalLM", EXPERTS, {}),
    "qwen2": ("qwen2", "Qwen2ForCausalLM", {}, {"biases": "qkv"}),
    "qwen3": ("qwen3", "Qwen3ForCausalLM", {}, {}),
    "qwen3moe": (
        "qwen3moe",
        "Qwen3MoeForCausalLM",
        {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 6, "norm_topk_prob": True},
        {},
    ),
    "gemma2": ("gemma2", "Gemma2ForCausalLM", GEMMA, {}),
    "gemma3": ("gemma3", "Gemma3ForCausalLM", {**GEMMA, "rope_local_base_freq": 500.0}, {}),
    "phi3": ("phi3", "Phi3ForCausalLM", {}, {}),
    "longrope": (
        "phi3",
        "Phi3ForCausalLM",
        {**rope("longrope", **LONGROPE), "original_max_position_embeddings": 16},
        {},
    ),
}


def folder_of(path, architecture, model_class, config, tensors):
    return write_model(path, model_class, model_arrays(architecture, **tensors), **config)


def gpt_oss(path, head=True):
    yarn = rope("yarn", factor=4.0, original_max_position_embeddings=16, truncate=False)
    arrays = gpt_oss_arrays()
    if head:
        arrays["lm_head.weight"] = arrays["model.embed_tokens.weight"][::-1]
    return write_model(path, "GptOssForCausalLM", arrays, **EXPERTS, **yarn, sliding_window=5)


def exported(checkpoint, path):
    keys = [encode_key(name, value) for name, value in gguf_keys(checkpoint).items()]
    write_gguf(path, keys, gguf_tensors(checkpoint))
    return open_checkpoint(path)


def scores(checkpoint):
    runtime = ReferenceRuntime()
    runtime.load(checkpoint)
    runtime.allocate(1)
    out = np.empty((9, checkpoint.spec.vocab), np.float32)
    runtime.execute(step_of(Chunk([1, 2, 3, 4, 5, 6, 7, 8, 9], 0, [0], draw=range(9))), out)
    return out


def check_round_trip(folder, path):
    source = open_checkpoint(folder)
    found = exported(source, path)
    assert differences(source.spec, found.spec) == []
    expected = scores(source)
    assert np.abs(scores(found) - expected).max() < 1e-5 * np.abs(expected).max()
    return found


def known_to_gguf(path):
    """Names of tensors and keys that the gguf package has for the file's architecture."""
    reader = gguf.GGUFReader(path)
    name = reader.fields["general.architecture"].contents()
    architecture = next(arch for arch, known in gguf.MODEL_ARCH_NAMES.items() if known == name)
    names = gguf.get_tensor_name_map(architecture, 2)
    tensors = set(gguf.MODEL_TENSORS[architecture])
    assert isinstance(architecture, MODEL_ARCH)
    for tensor in reader.tensors:
        base = tensor.name.removesuffix(".weight").removesuffix(".bias")
        assert names.get_type(base) in tensors, tensor.name
    constants = {v for group in vars(Keys).values() if isinstance(group, type) for v in vars(group).values()}
    keys = {key.replace("{arch}", name) for key in constants if isinstance(key, str)}
    own = {key for key in reader.fields if not key.startswith("GGUF.")}
    assert own <= keys, own - keys


@pytest.mark.parametrize("case", CASES)
def test_the_same_model_comes_back(case, tmp_path):
    path = tmp_path / "m.gguf"
    check_round_trip(folder_of(tmp_path, *CASES[case]), path)
    known_to_gguf(path)


def test_gpt_oss_comes_back(tmp_path):
    path = tmp_path / "m.gguf"
    check_round_trip(gpt_oss(tmp_path), path)
    known_to_gguf(path)


def test_gpt_oss_without_a_head_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="wants a head of its own"):
        gguf_keys(open_checkpoint(gpt_oss(tmp_path, head=False)))


def test_longrope_comes_back_in_its_original_context(tmp_path):
    architecture, model_class, config, tensors = CASES["longrope"]
    folder = folder_of(tmp_path, architecture, model_class, config | {"original_max_position_embeddings": 64}, tensors)
    check_round_trip(folder, tmp_path / "m.gguf")


@pytest.mark.parametrize(
    ("case", "changes", "says"),
    [
        ("mistral", {"sliding_window": 5}, "does not read the window of a mistral model"),
        ("llama", {"partial_rotary_factor": 0.5}, "rotates a part of each head"),
        ("gemma2", {"attn_logit_softcapping": "null"}, "no gemma2 without soft caps"),
        ("gemma2", {"final_logit_softcapping": "null"}, "no gemma2 without soft caps"),
        ("qwen3moe", {"norm_topk_prob": False}, "the weights of its experts do not add up to 1"),
    ],
)
def test_what_gguf_cannot_say_is_refused(case, changes, says, tmp_path):
    architecture, model_class, config, tensors = CASES[case]
    source = open_checkpoint(folder_of(tmp_path, architecture, model_class, config | changes, tensors))
    with pytest.raises(CheckpointError, match=says):
        gguf_keys(source)


@pytest.mark.parametrize(
    ("case", "changes", "field"),
    [
        ("gemma3", {"query_pre_attn_scalar": 9}, "query_scale"),
        ("gemma3", {"layer_types": ["full_attention", "sliding_attention"]}, "windows"),
    ],
)
def test_what_is_understood_as_another_model_is_found(case, changes, field, tmp_path):
    architecture, model_class, config, tensors = CASES[case]
    source = open_checkpoint(folder_of(tmp_path, architecture, model_class, config | changes, tensors))
    assert differences(source.spec, exported(source, tmp_path / "m.gguf").spec) == [field]


def test_every_field_of_a_spec_is_compared(tmp_path):
    spec = open_checkpoint(folder_of(tmp_path, *CASES["gemma3"])).spec
    skipped = {"name", "architecture", "attention_scale", "rope"}
    for field in dataclasses.fields(spec):
        if field.name not in skipped:
            assert differences(spec, dataclasses.replace(spec, **{field.name: -1})) == [field.name]
    scaled = dataclasses.replace(spec.rope, scaling=RopeScaling("linear", 2.0))
    assert differences(spec, dataclasses.replace(spec, rope=scaled)) == ["rope"]
