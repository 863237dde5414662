"""Every family against Hugging Face's transformers: the same tiny checkpoint on disk, the same scores.

These need the dependency group ``oracle`` (torch and transformers), which the server itself never does.
"""

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from lightwell.checkpoints import open_checkpoint
from lightwell.checkpoints.checkpoint import Checkpoint
from lightwell.runtimes.base import Runtime
from lightwell.runtimes.cpu import CpuRuntime
from lightwell.runtimes.reference import ReferenceRuntime
from tests.steps import Chunk, blocks_for, step_of

REASON = "torch and transformers are not installed: pip install --group oracle"
torch = pytest.importorskip("torch", reason=REASON)
transformers = pytest.importorskip("transformers", reason=REASON)

pytestmark = pytest.mark.slow

Floats = npt.NDArray[np.float32]
TOKENS = 150

SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 120,
    "max_position_embeddings": 512,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 48, "head_dim": 32}
GEMMA = {"head_dim": 32, "query_pre_attn_scalar": 24, "sliding_window": 40, "num_hidden_layers": 6}


@dataclass(frozen=True)
class Case:
    """A model class, and what its configuration says besides SHAPE."""

    model: str
    config: dict[str, Any] = field(default_factory=dict)
    config_class: str = ""


def rope(kind: str, **parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10_000.0, **parameters}}


def longrope(original: int, dims: int = 16) -> dict[str, Any]:
    factors = {"short_factor": np.linspace(1, 1.5, dims // 2).tolist(), "long_factor": [*range(1, dims // 2 + 1)]}
    return {"original_max_position_embeddings": original, **rope("longrope", **factors)}


CASES = {
    "llama": Case("Llama", {"tie_word_embeddings": True}),
    "llama, untied and with biases": Case("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, linear": Case("Llama", rope("linear", factor=4.0)),
    "llama, llama3": Case(
        "Llama",
        rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64),
    ),
    "llama, yarn": Case("Llama", rope("yarn", factor=4.0, original_max_position_embeddings=128)),
    "mistral": Case("Mistral", {"sliding_window": 40}),
    "qwen2": Case("Qwen2", {"use_sliding_window": True, "sliding_window": 40, "max_window_layers": 2}),
    "qwen3": Case("Qwen3", {"head_dim": 32}),
    "gemma2": Case("Gemma2", {**GEMMA, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 8.0}),
    "gemma2, without caps": Case("Gemma2", {**GEMMA, "attn_logit_softcapping": None, "final_logit_softcapping": None}),
    "gemma3": Case("Gemma3", GEMMA, config_class="Gemma3TextConfig"),
    "phi3": Case("Phi3", {"sliding_window": 40}),
    "phi3, long": Case("Phi3", longrope(128)),
    "phi3, long with a part of the head": Case(
        "Phi3", {**longrope(128, dims=12), "partial_rotary_factor": 0.75, "tie_word_embeddings": True}
    ),
    "phi3, in its original context": Case("Phi3", longrope(512)),
    "mixtral": Case("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 40}),
    "qwen3 moe": Case("Qwen3Moe", {**EXPERTS, "num_experts": 8, "norm_topk_prob": True}),
    "qwen3 moe, some layers dense": Case(
        "Qwen3Moe", {**EXPERTS, "num_experts": 5, "mlp_only_layers": [2], "decoder_sparse_step": 2}
    ),
}
CASES |= {
    "gpt-oss": Case(
        "GptOss",
        {
            "head_dim": 32,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": 40,
            **rope("yarn", factor=4.0, original_max_position_embeddings=128, truncate=False),
        },
    ),
}


def make_model(case: Case) -> Any:
    """A model with weights that make scores of sensible size; norms and biases differ from what they start as."""
    torch.manual_seed(0)
    config_class = getattr(transformers, case.config_class or f"{case.model}Config")
    config = config_class(**{**SHAPE, **case.config}, attn_implementation="eager")
    model = getattr(transformers, f"{case.model}ForCausalLM")(config).eval().float()
    offset = 0.0 if case.model.startswith("Gemma") else 1.0  # Gemma stores what a norm's weight exceeds 1 by
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn_like(parameter)
            if "norm" in name:
                parameter.copy_(noise * 0.3 + offset)
            elif parameter.ndim == 1 or name.endswith("_bias"):
                parameter.copy_(noise * 0.3)
            elif "embed" in name or "lm_head" in name:
                parameter.copy_(noise * 0.5)
            else:
                inputs = parameter.shape[-2] if case.model == "GptOss" and parameter.ndim == 3 else parameter.shape[-1]
                parameter.copy_(noise / math.sqrt(inputs))
    return model


def scores(runtime: Runtime, checkpoint: Checkpoint, tokens: list[int]) -> Floats:
    """After every token, in chunks of 64."""
    runtime.load(checkpoint)
    runtime.allocate(blocks_for(len(tokens)))
    out = np.empty((len(tokens), checkpoint.spec.vocab), np.float32)
    for start in range(0, len(tokens), 64):
        chunk = tokens[start : start + 64]
        table = list(range(blocks_for(len(tokens))))
        runtime.execute(step_of(Chunk(chunk, start, table, draw=range(len(chunk)))), out[start : start + 64])
    return out


def hidden(runtime: Runtime, checkpoint: Checkpoint, tokens: list[int]) -> Floats:
    """Of every token, in one step."""
    runtime.load(checkpoint)
    runtime.allocate(blocks_for(len(tokens)))
    step = step_of(Chunk(tokens, 0, list(range(blocks_for(len(tokens)))), draw=[]))
    rows = runtime.execute(replace(step, hidden_rows=np.arange(len(tokens), dtype=np.int32))).hidden
    assert rows is not None
    return rows


def error(actual: Floats, expected: Floats) -> float:
    return float(np.abs(actual - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_scores_are_those_of_transformers(case: Case, tmp_path: Path) -> None:
    model = make_model(case)
    model.save_pretrained(tmp_path)
    tokens = [int(token) for token in np.random.default_rng(0).integers(0, SHAPE["vocab_size"], TOKENS)]
    with torch.no_grad():
        expected = model(torch.tensor([tokens])).logits[0].numpy()
    checkpoint = open_checkpoint(tmp_path)
    assert error(scores(ReferenceRuntime(), checkpoint, tokens), expected) < 2e-5
    # keys and values are halves in the CPU runtime's cache
    assert error(scores(CpuRuntime(threads=2, activations="float32"), checkpoint, tokens), expected) < 3e-3


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_hidden_states_are_those_of_transformers(case: Case, tmp_path: Path) -> None:
    """The last layer's, after the final norm: what embeddings are pooled from.

    With these tokens no two experts score nearly the same: halves in the cache would decide between them otherwise
    (among others, a gap of 8e-5 at one token makes that token's state differ by a tenth).
    """
    model = make_model(case)
    model.save_pretrained(tmp_path)
    tokens = [int(token) for token in np.random.default_rng(0).integers(0, SHAPE["vocab_size"], TOKENS)]
    with torch.no_grad():
        expected = model.model(torch.tensor([tokens])).last_hidden_state[0].numpy()
    checkpoint = open_checkpoint(tmp_path)
    assert error(hidden(ReferenceRuntime(), checkpoint, tokens), expected) < 2e-5
    assert error(hidden(CpuRuntime(threads=2, activations="float32"), checkpoint, tokens), expected) < 3e-3
