"""``lightwell quantize SRC DEST``: a model's matrices in 8 or 4 bits, as a GGUF file, with what that loses.

Matrices get the format asked for. The token table and the head get Q8_0 in any case: they are read for every token,
and 4 bits cost most there. Norms, biases and routers are F32, rows that are no multiple of 32 values stay as they are.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lightwell.checkpoints import open_checkpoint
from lightwell.checkpoints.catalog import pull
from lightwell.checkpoints.checkpoint import Checkpoint
from lightwell.checkpoints.gguf import read_gguf
from lightwell.checkpoints.gguf_writer import encode_key, put_in_place, write_gguf
from lightwell.checkpoints.quantizing import recode
from lightwell.checkpoints.tensor import ComputedTensor, Format, Tensor
from lightwell.cli.progress import Advance, progress
from lightwell.cli.table import print_table
from lightwell.errors import CheckpointError, StartupError
from lightwell.models.gguf_export import differences, gguf_keys, gguf_tensors
from lightwell.text.gguf_export import gguf_tokenizer
from lightwell.units import Bytes, format_bytes

FORMATS = {"q8_0": Format.Q8_0, "q4_0": Format.Q4_0, "q4_1": Format.Q4_1}
_FILE_TYPES = {Format.Q8_0: 7, Format.Q4_0: 2, Format.Q4_1: 3}  # llama.cpp's numbers for "mostly" this format
_QUANTIZATION_VERSION = 2  # of ggml's formats
_REPLACED = ("general.alignment", "general.file_type", "general.quantization_version")
_FLOATS = (Format.F32, Format.F16, Format.BF16)
_TABLES = ("token_embd.weight", "output.weight")
_LAYER = re.compile(r"blk\.(\d+)\.(.+)\.weight")


@dataclass(frozen=True)
class Line:
    """One tensor of the report; ``error`` is the RMS of what changed, over that of the values."""

    name: str
    source: Format
    format: Format
    bytes_before: Bytes
    bytes_after: Bytes
    error: float


def quantize(source: str, destination: Path, format: str, force: bool, requantize: bool, as_json: bool) -> None:
    """Write the file and print the report.

    Raises StartupError where the destination cannot be written to, CheckpointError for a source that is damaged, is
    quantized already, or cannot be said in GGUF.
    """
    path = pull(source)
    _check_destination(path, destination, force)
    checkpoint = open_checkpoint(path)
    keys, tensors = _from_folder(checkpoint) if path.is_dir() else _from_gguf(path)
    planned = [(tensor, target_format(tensor, FORMATS[format])) for tensor in tensors]
    if not requantize:
        _refuse_quantized(path, planned)
    keys += [
        encode_key("general.file_type", _FILE_TYPES[FORMATS[format]]),
        encode_key("general.quantization_version", _QUANTIZATION_VERSION),
    ]
    lines: list[Line] = []
    try:
        with put_in_place(destination) as partial:
            with progress(checkpoint.spec.name, sum(tensor.nbytes for tensor in tensors)) as advance:
                write_gguf(partial, keys, [_recoded(path, *plan, lines, advance) for plan in planned])
            _check_written(checkpoint, partial)
    except OSError as error:
        raise StartupError(f"{destination} cannot be written: {error.strerror}.") from error
    _report(checkpoint.spec.name, format, lines, as_json)


def _check_destination(source: Path, destination: Path, force: bool) -> None:
    if destination.exists():
        if destination.is_dir() or destination.samefile(source):
            raise StartupError(f"{destination} is {'a folder' if destination.is_dir() else 'the source itself'}.")
        if not force:
            raise StartupError(f"{destination} is there already: give another name, or --force to replace it.")


def _from_gguf(path: Path) -> tuple[list[bytes], list[Tensor]]:
    """Keys as they stand in the file, byte by byte, and tensors under their own names."""
    file = read_gguf(path)
    keys = [file.map[place] for name, place in file.places.items() if name not in _REPLACED]
    return keys, list(file.tensors.values())


def _from_folder(checkpoint: Checkpoint) -> tuple[list[bytes], list[Tensor]]:
    keys = gguf_keys(checkpoint) | gguf_tokenizer(checkpoint)
    return [encode_key(name, value) for name, value in keys.items()], gguf_tensors(checkpoint)


def target_format(tensor: Tensor, format: Format) -> Format:
    """What a tensor becomes, by GGUF's name for it."""
    if len(tensor.shape) == 1 or tensor.name.endswith((".bias", ".ffn_gate_inp.weight")):
        return Format.F32
    if tensor.columns % format.group_values:
        return tensor.format
    return Format.Q8_0 if tensor.name in _TABLES else format


def _refuse_quantized(path: Path, planned: Sequence[tuple[Tensor, Format]]) -> None:
    for tensor, _ in planned:
        if tensor.format not in _FLOATS:
            raise CheckpointError(
                path,
                f"is quantized already ({tensor.name} is {tensor.format}): take the original, "
                "or give --allow-requantize to add one loss to the other",
            )


def _recoded(path: Path, tensor: Tensor, format: Format, lines: list[Line], advance: Advance) -> Tensor:
    """The tensor in its new format, computed when it is written; its line of the report comes then."""

    def compute() -> npt.NDArray[np.uint8]:
        try:
            recoded = recode(tensor, format)
        except ValueError as error:
            raise CheckpointError(path, str(error)) from None
        after = len(recoded.data)
        lines.append(Line(tensor.name, tensor.format, format, tensor.nbytes, after, recoded.error))
        advance(tensor.nbytes, tensor.name)
        return recoded.data

    return ComputedTensor(tensor.name, format, tensor.shape, compute)


def _check_written(checkpoint: Checkpoint, written: Path) -> None:
    """Read the file back: it must be understood as the same model."""
    found = open_checkpoint(written)
    if unequal := differences(checkpoint.spec, found.spec):
        raise CheckpointError(
            checkpoint.path, f"cannot be written as GGUF: {', '.join(unequal)} would be understood as something else"
        )


def _report(model: str, format: str, lines: Sequence[Line], as_json: bool) -> None:
    before, after = sum(line.bytes_before for line in lines), sum(line.bytes_after for line in lines)
    if as_json:
        facts = {"measure": "quantize", "model": model, "format": format, "bytes_before": before, "bytes_after": after}
        print(json.dumps(facts | {"tensors": [asdict(line) for line in lines]}))
        return
    changed = [line for line in lines if line.error > 0]
    print("relative RMS error by layer")
    print_table(_by_layer(changed))
    for line in changed:
        if not _LAYER.fullmatch(line.name):
            print(f"{line.name}, {line.format}: {line.error:.2%}")
    if changed:
        worst = max(changed, key=lambda line: line.error)
        print(f"worst: {worst.name}, {worst.format}: {worst.error:.2%}")
    print(f"{format_bytes(before)} -> {format_bytes(after)}")


def _by_layer(lines: Sequence[Line]) -> list[list[str]]:
    """A row for each layer, a column for each of its matrices."""
    cells = {(int(match[1]), match[2]): line.error for line in lines if (match := _LAYER.fullmatch(line.name))}
    parts = list(dict.fromkeys(part for _, part in cells))
    rows = [
        [str(layer), *(f"{cells[layer, part]:.2%}" if (layer, part) in cells else "" for part in parts)]
        for layer in sorted({layer for layer, _ in cells})
    ]
    return [["LAYER", *parts], *rows]
