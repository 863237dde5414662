"""A GGUF file of a Llama as a Hugging Face folder in bf16, for servers that read nothing else.

    python -m bench.peers.hf_folder MODEL FOLDER

Weights are dequantized, so the folder computes what the file does up to bf16's rounding, at 16 bits a weight.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tokenizers

from lightwell.checkpoints import open_checkpoint
from lightwell.checkpoints.catalog import pull
from lightwell.checkpoints.checkpoint import Checkpoint
from lightwell.checkpoints.quantized import dequantize
from lightwell.checkpoints.spec import ModelSpec
from lightwell.checkpoints.tensor import Tensor
from lightwell.errors import CheckpointError
from lightwell.text import Tokenizer, load_tokenizer

_TOP_NAMES = {
    "embed.weight": "model.embed_tokens.weight",
    "final_norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}


def write_hf_folder(model: Path, folder: Path) -> None:
    """Write config.json, model.safetensors and the tokenizer's files. Raises CheckpointError for other families."""
    checkpoint = open_checkpoint(model)
    spec = checkpoint.spec
    if spec.architecture != "llama" or spec.rope.scaling is not None:
        raise CheckpointError(model, "only plain Llama models can be written as a Hugging Face folder here")
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = load_tokenizer(checkpoint)
    _write_json(folder / "config.json", _config(spec, tokenizer))
    _write_json(folder / "tokenizer_config.json", _tokenizer_config(checkpoint, tokenizer))
    _whole_tokenizer(tokenizer).save(str(folder / "tokenizer.json"))
    tensors = {hf_name(name): hf_values(name, tensor, spec) for name, tensor in checkpoint.tensors.items()}
    write_safetensors(folder / "model.safetensors", {name: bfloat16(values) for name, values in tensors.items()})


def hf_name(name: str) -> str:
    """``layers.3.q.weight`` -> ``model.layers.3.self_attn.q_proj.weight``."""
    if name in _TOP_NAMES:
        return _TOP_NAMES[name]
    _, layer, part, kind = name.split(".")
    return f"model.layers.{layer}.{_LAYER_NAMES[part]}.{kind}"


def hf_values(name: str, tensor: Tensor, spec: ModelSpec) -> npt.NDArray[np.float32]:
    """Float32 in Hugging Face's order of rows: it rotates the halves of a head, GGUF's Llama rotates neighbours."""
    values = dequantize(tensor)
    if spec.rope.interleaved and name.rsplit(".", 2)[-2] in ("q", "k"):
        pairs = values.reshape(-1, spec.head_dim // 2, 2, values.shape[-1])
        return pairs.swapaxes(1, 2).reshape(values.shape)
    return values


def bfloat16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """The bits of the nearest bfloat16, ties to even; the values are finite."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def write_safetensors(file: Path, tensors: dict[str, npt.NDArray[np.uint16]]) -> None:
    """bf16 tensors in the safetensors format: the length of a JSON header, the header, the values one after another."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, bits in tensors.items():
        begin, end = end, end + bits.nbytes
        header[name] = {"dtype": "BF16", "shape": list(bits.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # the values begin at a multiple of 8
    with file.open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for bits in tensors.values():
            out.write(bits.tobytes())


def _config(spec: ModelSpec, tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": spec.width,
        "intermediate_size": spec.ffn_width,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.kv_heads,
        "head_dim": spec.head_dim,
        "vocab_size": spec.vocab,
        "max_position_embeddings": spec.context_tokens,
        "rms_norm_eps": spec.norm_eps,
        "rope_theta": spec.rope.theta,
        "hidden_act": spec.activation,
        "tie_word_embeddings": spec.tied_head,
        "bos_token_id": tokenizer.bos_id,
        "eos_token_id": tokenizer.eos_id,
        "torch_dtype": "bfloat16",
    }


def _tokenizer_config(checkpoint: Checkpoint, tokenizer: Tokenizer) -> dict[str, Any]:
    names = {token.id: token.text for token in tokenizer.vocabulary.control}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": names.get(-1 if tokenizer.bos_id is None else tokenizer.bos_id),
        "eos_token": names.get(-1 if tokenizer.eos_id is None else tokenizer.eos_id),
        "add_bos_token": tokenizer.add_bos,
        "model_max_length": checkpoint.spec.context_tokens,
        "chat_template": checkpoint.chat_template,
    }


def _whole_tokenizer(tokenizer: Tokenizer) -> tokenizers.Tokenizer:
    """With the control tokens, which our own keeps apart, under their own ids."""
    control = tokenizer.vocabulary.control
    description = json.loads(tokenizer.model_json())
    description["model"]["vocab"] |= {token.text: token.id for token in control}
    whole = tokenizers.Tokenizer.from_str(json.dumps(description))
    whole.add_special_tokens([token.text for token in control])
    return whole


def _write_json(file: Path, value: dict[str, Any]) -> None:
    file.write_text(json.dumps(value, indent=2, ensure_ascii=False), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a name from `lightwell models`, or a path")
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    write_hf_folder(pull(options.model), options.folder)


if __name__ == "__main__":
    main()
