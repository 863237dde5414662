"""The model's tensors in the form that kernels read: matrices packed once, vectors as float32."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lightwell.checkpoints.quantized import dequantize
from lightwell.checkpoints.tensor import Format, Tensor
from lightwell.errors import CheckpointError
from lightwell.models.weights import Linear
from lightwell.runtimes.base import Floats
from lightwell.runtimes.cpu import _native
from lightwell.units import Bytes

_FLOAT_FORMATS = (Format.F32, Format.F16, Format.BF16)  # multiplied with float activations


class PackedWeights:
    """``int8_activations`` False multiplies every matrix with float activations, for tests of the arithmetic."""

    def __init__(self, path: Path, matrices: Iterable[Tensor], threads: int, *, int8_activations: bool) -> None:
        """Raises CheckpointError for a format that has no packed form."""
        self._int8_activations = int8_activations
        tensors = {tensor.name: tensor for tensor in matrices}
        with ThreadPoolExecutor(threads) as pool:  # packing releases the GIL
            packed = pool.map(lambda tensor: _pack(path, tensor), tensors.values())
            self._matrices = dict(zip(tensors, packed, strict=True))

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


def _pack(path: Path, tensor: Tensor) -> _native.PackedMatrix:
    try:
        return _native.PackedMatrix(tensor.data, tensor.format, tensor.rows, tensor.columns)
    except ValueError as error:
        raise CheckpointError(path, f"tensor {tensor.name} ({tensor.format}): {error}") from error
