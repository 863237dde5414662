"""The native module, built from csrc/: only what the runtime uses."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

_Floats = npt.NDArray[np.float32]
_Int32s = npt.NDArray[np.int32]

_Bytes = npt.NDArray[np.uint8]

PACKING: str  # names the packed layout: where it differs, packed bytes differ

def available_isas() -> list[str]: ...
def empty_weights(bytes: int) -> _Bytes: ...
def read_rates(bytes: int, cpus: list[int], runs: int) -> list[float]: ...
def peak_formats() -> list[tuple[str, str]]: ...
def operation_rates(isa: str, format: str, cpus: list[int], runs: int) -> list[float]: ...

class PackedMatrix:
    def __init__(self, data: _Bytes, format: str, rows: int, columns: int) -> None: ...
    @staticmethod
    def of_packed(packed: _Bytes, format: str, rows: int, columns: int) -> PackedMatrix: ...
    @property
    def packed(self) -> _Bytes: ...
    @property
    def rows(self) -> int: ...
    @property
    def columns(self) -> int: ...
    @property
    def form(self) -> str: ...
    @property
    def nbytes(self) -> int: ...

class Projection:
    def __init__(self, weight: PackedMatrix, bias: _Floats | None) -> None: ...

class Plan:
    def __init__(
        self,
        isa: str,
        threads: int,
        vocab: int,
        layers: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        kv_type: str,
    ) -> None: ...
    def buffer(self, columns: int, floats: bool, quantized: bool) -> int: ...
    def rope(self, frequencies: list[float], factor: float, interleaved: bool) -> int: ...
    def embed(self, table: PackedMatrix, scale: float, out: int) -> None: ...
    def norm(self, x: int, weight: _Floats, eps: float, out: int) -> None: ...
    def add_norm(self, x: int, weight: _Floats, eps: float, out: int) -> None: ...
    def add(self, x: int, out: int) -> None: ...
    def put(self, x: int, out: int) -> None: ...
    def linear(self, x: int, projection: Projection, out: int, add: bool) -> None: ...
    def gated(self, x: int, gate: Projection, up: Projection, activation: str, out: int) -> None: ...
    def experts(
        self,
        x: int,
        router: Projection,
        experts: list[tuple[Projection, Projection, Projection]],
        per_row: int,
        normalized: bool,
        activation: str,
        quantize: bool,
        out: int,
    ) -> None: ...
    def qkv(
        self,
        x: int,
        q: Projection,
        k: Projection,
        v: Projection,
        q_norm: _Floats | None,
        k_norm: _Floats | None,
        eps: float,
        rope: int | None,
        layer: int,
        out: int,
    ) -> None: ...
    def attention(
        self, q: int, layer: int, scale: float, window: int, soft_cap: float, sinks: _Floats | None, out: int
    ) -> None: ...
    def logits(self, x: int, norm: _Floats, eps: float, head: Projection, soft_cap: float, quantize: bool) -> None: ...
    def pin(self, cpus: list[int]) -> bool: ...
    def allocate(self, blocks: int) -> None: ...
    def offload_to(self, file: int, slots: int) -> None: ...
    @property
    def kv_bytes_per_block(self) -> int: ...
    def workspace_bytes(self, tokens: int, logit_rows: int, context: int) -> int: ...
    def profile(self) -> dict[str, float]: ...
    def execute(
        self,
        tokens: _Int32s,
        positions: _Int32s,
        starts: _Int32s,
        block_tables: _Int32s,
        copies: _Int32s | None,
        logit_rows: _Int32s,
        temperature: _Floats,
        top_k: _Int32s,
        top_p: _Floats,
        min_p: _Floats,
        seeds: npt.NDArray[np.uint64],
        draw_positions: _Int32s,
        logprobs: _Int32s,
        drawn: _Int32s,
        chosen: _Floats | None,
        top_ids: _Int32s | None,
        top: _Floats | None,
        logits: _Floats | None,
        given: _Int32s | None,
        edits: tuple[_Int32s, _Int32s, _Floats, _Floats] | None,
        masks: tuple[_Int32s, npt.NDArray[np.uint32], Callable[[], None]] | None,
        hidden_rows: _Int32s | None,
        hidden: _Floats | None,
    ) -> float: ...
