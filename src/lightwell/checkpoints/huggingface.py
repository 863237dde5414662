"""A Hugging Face folder read as a model: its config.json, its tensors under our names, its chat template."""

import logging
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from lightwell.checkpoints.checkpoint import Checkpoint
from lightwell.checkpoints.fields import Fields
from lightwell.checkpoints.fused import split_fused
from lightwell.checkpoints.gpt_oss import unstack
from lightwell.checkpoints.hf_config import read_architecture, read_spec, required_biases
from lightwell.checkpoints.hf_quantized import join_quantized
from lightwell.checkpoints.json_files import read_json, read_text
from lightwell.checkpoints.layout import check_layout, layer_count, rename
from lightwell.checkpoints.quantized import dequantize
from lightwell.checkpoints.safetensors import read_folder
from lightwell.checkpoints.tensor import Format, Tensor
from lightwell.errors import CheckpointError

log = logging.getLogger(__name__)

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
_COMPUTED = "rotary_emb.inv_freq"  # old Llama files hold the frequencies that the configuration states anyway
_TOP_NAMES = {
    "embed_tokens.weight": "embed.weight",
    "norm.weight": "final_norm.weight",
    "lm_head.weight": "head.weight",
}
_LAYER_TENSOR = re.compile(r"layers\.(0|[1-9][0-9]*)\.(.+)\.(weight|bias)")
_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "q",
    "self_attn.k_proj": "k",
    "self_attn.v_proj": "v",
    "self_attn.o_proj": "o",
    "self_attn.q_norm": "q_norm",
    "self_attn.k_norm": "k_norm",
    "mlp.gate_proj": "gate",
    "mlp.up_proj": "up",
    "mlp.down_proj": "down",
}
_LLAMA_NAMES = _LAYER_NAMES | {
    "post_attention_layernorm": "ffn_norm",
    "self_attn.qkv_proj": "qkv",
    "mlp.gate_up_proj": "gate_up",
    "mlp.gate": "router",
    "mlp.router": "router",
    "self_attn.sinks": "sinks",
    "block_sparse_moe.gate": "router",
}
_GEMMA_NAMES = _LAYER_NAMES | {
    "post_attention_layernorm": "post_attn_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffn_norm",
}
_EXPERT = re.compile(r"(?:mlp|block_sparse_moe)\.experts\.(0|[1-9][0-9]*)\.(\w+)")
_EXPERT_PARTS = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down", "w1": "gate", "w3": "up", "w2": "down"}


def open_huggingface(folder: Path) -> Checkpoint:
    """Open a folder with config.json, safetensors and, for text, tokenizer.json.

    Raises CheckpointError naming the file and the field or tensor that is missing, damaged or not supported.
    """
    config = Fields(folder / "config.json", read_json(folder / "config.json"))
    architecture = read_architecture(config)
    stored, maps = read_folder(folder)
    kept = {name: tensor for name, tensor in stored.items() if not name.endswith(_COMPUTED)}
    weights = join_quantized(config, kept)
    if architecture == "gpt-oss":
        weights = unstack(weights)
    gemma = architecture.startswith("gemma")
    tensors = rename(folder, weights, lambda name: our_name(name, _GEMMA_NAMES if gemma else _LLAMA_NAMES))
    tied = config.get("tie_word_embeddings", bool, "head.weight" not in tensors)
    if tied and tensors.pop("head.weight", None) is not None:
        log.warning("%s: lm_head.weight is left out, as tie_word_embeddings is true", folder)
    if gemma:
        tensors = {name: _one_plus(t) if name.endswith("norm.weight") else t for name, t in tensors.items()}
    spec = read_spec(architecture, config, layer_count(config, "num_hidden_layers", tensors), tied=tied)
    tensors = split_fused(folder, spec, tensors)
    check_layout(folder, spec, tensors, required_biases(architecture, config))
    tokenizer = {name: folder / name for name in _TOKENIZER_FILES if (folder / name).exists()}
    return Checkpoint(folder, spec, tensors, tokenizer, _chat_template(folder), maps)


def our_name(name: str, layer_names: Mapping[str, str]) -> str | None:
    """``model.layers.3.self_attn.q_proj.weight`` -> ``layers.3.q.weight``; None for a name that is not known."""
    short = name.removeprefix("model.")
    if match := _LAYER_TENSOR.fullmatch(short):
        part = _expert_part(match[2]) or layer_names.get(match[2])
        return part and f"layers.{match[1]}.{part}.{match[3]}"
    return _TOP_NAMES.get(short)


def _expert_part(name: str) -> str | None:
    """``mlp.experts.7.gate_proj`` -> ``experts.7.gate``"""
    match = _EXPERT.fullmatch(name)
    part = match and _EXPERT_PARTS.get(match[2])
    return part and match and f"experts.{match[1]}.{part}"


def _one_plus(weight: Tensor) -> Tensor:
    """Gemma's norms multiply by 1 + weight; everywhere else here a norm's tensor is what it multiplies by."""
    data = (dequantize(weight) + np.float32(1)).reshape(-1).view(np.uint8)
    data.setflags(write=False)
    return Tensor(weight.name, Format.F32, weight.shape, data)


def _chat_template(folder: Path) -> str | None:
    """The model's own template: a file beside the weights, or a field of tokenizer_config.json."""
    for name in ("chat_template.jinja", "chat_template.json", "tokenizer_config.json"):
        path = folder / name
        if not path.exists():
            continue
        if path.suffix == ".jinja":
            return read_text(path)
        if (template := _template_in(path)) is not None:
            return template
    return None


def _template_in(path: Path) -> str | None:
    """Either one template, or a list of named ones of which "default" is for chat."""
    template = read_json(path).get("chat_template")
    if isinstance(template, list):
        named = (item for item in template if isinstance(item, dict))
        template = next((item.get("template") for item in named if item.get("name") == "default"), None)
    if template is not None and not isinstance(template, str):
        raise CheckpointError(path, "key 'chat_template' is not text")
    return template
