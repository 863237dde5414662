"""A tiny real model as a GGUF file: random weights, a byte-level tokenizer, a chat template; for whole-server tests."""

from pathlib import Path

import gguf
import numpy as np

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def byte_tokens() -> list[str]:
    """The 256 printable stand-ins of GPT-2's byte-level alphabet, in the order of their bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {byte: chr(byte) for byte in printable}
    table |= {byte: chr(256 + i) for i, byte in enumerate(b for b in range(256) if b not in table)}
    return [table[byte] for byte in range(256)]


def write_tiny_gguf(
    path: Path, *, seed: int = 0, context: int = 512, chat: bool = True, layers: int = 2, letter: str = "t"
) -> Path:
    """A two-layer Llama of width 64 in Q8_0 with 260 tokens; one is a space and this letter."""
    width, heads, kv_heads, head_dim, ffn = 64, 4, 2, 16, 96
    tokens = [*byte_tokens(), f"Ġ{letter}", *SPECIALS]
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(context)
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(ffn)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_rope_dimension_count(head_dim)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * 257 + [3] * len(SPECIALS))
    writer.add_token_merges([f"Ġ {letter}"])
    writer.add_bos_token_id(257)
    writer.add_eos_token_id(259)
    writer.add_add_bos_token(False)
    if chat:
        writer.add_chat_template(CHAT_TEMPLATE)

    def matrix(name: str, rows: int, columns: int) -> None:
        values = rng.normal(0, columns**-0.5, (rows, columns)).astype(np.float32)
        kind = gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)

    def norm(name: str, size: int) -> None:
        writer.add_tensor(name, np.ones(size, np.float32))

    matrix("token_embd.weight", len(tokens), width)
    norm("output_norm.weight", width)
    for i in range(layers):
        norm(f"blk.{i}.attn_norm.weight", width)
        norm(f"blk.{i}.ffn_norm.weight", width)
        matrix(f"blk.{i}.attn_q.weight", heads * head_dim, width)
        matrix(f"blk.{i}.attn_k.weight", kv_heads * head_dim, width)
        matrix(f"blk.{i}.attn_v.weight", kv_heads * head_dim, width)
        matrix(f"blk.{i}.attn_output.weight", width, heads * head_dim)
        matrix(f"blk.{i}.ffn_gate.weight", ffn, width)
        matrix(f"blk.{i}.ffn_up.weight", ffn, width)
        matrix(f"blk.{i}.ffn_down.weight", width, ffn)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
