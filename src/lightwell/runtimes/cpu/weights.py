"""The model's tensors in the form that kernels read: matrices packed once, vectors as float32."""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from lightwell.checkpoints.checkpoint import Checkpoint
from lightwell.checkpoints.mapping import MappedFile
from lightwell.checkpoints.quantized import dequantize
from lightwell.checkpoints.tensor import Format, Tensor
from lightwell.errors import CheckpointError
from lightwell.models.weights import Linear
from lightwell.runtimes.base import Floats
from lightwell.runtimes.cpu import _native, pack_cache
from lightwell.runtimes.cpu.pack_file import Source, address
from lightwell.units import Bytes

_FLOAT_FORMATS = (Format.F32, Format.F16, Format.BF16)  # multiplied with float activations


class PackedWeights:
    """``int8_activations`` False multiplies every matrix with float activations, for tests of the arithmetic.

    ``cached``: matrices that were packed at an earlier start are taken from disk, and new ones are kept there.
    """

    def __init__(
        self, checkpoint: Checkpoint, matrices: Iterable[Tensor], threads: int, *, int8_activations: bool, cached: bool
    ) -> None:
        """Raises CheckpointError for a format that has no packed form."""
        self._int8_activations = int8_activations
        tensors = {tensor.name: tensor for tensor in matrices}
        sources = _sources(checkpoint.maps, tensors.values()) if cached else {}
        kept = pack_cache.load(checkpoint.maps, set(sources.values()), threads) if sources else None
        self._matrices = {name: kept[source] for name, source in sources.items()} if kept else {}
        missing = [tensor for name, tensor in tensors.items() if name not in self._matrices]
        with ThreadPoolExecutor(threads) as pool:  # packing releases the GIL
            self._matrices.update(pool.map(lambda tensor: (tensor.name, _pack(checkpoint.path, tensor)), missing))
        if sources and not kept:
            new = {source: self._matrices[name] for name, source in sources.items()}
            pack_cache.keep_in_background(checkpoint.path.name, checkpoint.maps, new)

    @property
    def nbytes(self) -> Bytes:
        return sum(matrix.nbytes for matrix in self._matrices.values())

    def takes_int8(self, tensor: Tensor) -> bool:
        """Whether this matrix is multiplied with int8 activations."""
        return self._int8_activations and tensor.format not in _FLOAT_FORMATS

    def matrix(self, tensor: Tensor) -> _native.PackedMatrix:
        return self._matrices[tensor.name]

    def projection(self, layer: Linear) -> _native.Projection:
        return _native.Projection(self.matrix(layer.weight), None if layer.bias is None else self.vector(layer.bias))

    def vector(self, tensor: Tensor) -> Floats:
        return dequantize(tensor)


def _sources(files: Sequence[MappedFile], tensors: Iterable[Tensor]) -> dict[str, Source]:
    """By name, the tensors that are views of the files: what was computed from them is not known by its place."""
    starts = [address(np.frombuffer(file, np.uint8)) for file in files]
    found = {}
    for tensor in tensors:
        begin = address(tensor.data)
        for number, (start, file) in enumerate(zip(starts, files, strict=True)):
            if start <= begin and begin + tensor.data.nbytes <= start + len(file):
                found[tensor.name] = Source(number, begin - start, tensor.format, tensor.rows, tensor.columns)
    return found


def _pack(path: Path, tensor: Tensor) -> _native.PackedMatrix:
    try:
        return _native.PackedMatrix(tensor.data, tensor.format, tensor.rows, tensor.columns)
    except ValueError as error:
        raise CheckpointError(path, f"tensor {tensor.name} ({tensor.format}): {error}") from error
