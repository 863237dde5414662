"""RecordingOps: runs a model function once on symbols and keeps what it did, with every shape checked.

A value is the node that makes it. Nothing is computed here; fuse.py reads the nodes.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from lightwell.checkpoints.spec import Activation, ModelSpec, Rope
from lightwell.checkpoints.tensor import Tensor
from lightwell.errors import CheckpointError
from lightwell.models import model_function
from lightwell.models.weights import Experts, Linear, Weights

HEAD_DIM_UNIT = 16


@dataclass(frozen=True, eq=False)
class Embedded:
    table: Tensor
    scale: float
    columns: int


@dataclass(frozen=True, eq=False)
class Normed:
    """Over each run of ``len(weight)`` columns: per head where that is less than ``columns``."""

    x: "Node"
    weight: Tensor
    eps: float
    columns: int


@dataclass(frozen=True, eq=False)
class Projected:
    x: "Node"
    layer: Linear
    columns: int


@dataclass(frozen=True, eq=False)
class Rotated:
    x: "Node"
    rope: Rope
    columns: int


@dataclass(frozen=True, eq=False)
class Attended:
    q: "Node"
    k: "Node"
    v: "Node"
    layer: int
    scale: float
    window: int | None
    soft_cap: float
    sinks: Tensor | None
    columns: int


@dataclass(frozen=True, eq=False)
class Gated:
    gate: "Node"
    up: "Node"
    activation: Activation
    columns: int


@dataclass(frozen=True, eq=False)
class Mixed:
    """The weighted sum of what experts make of x."""

    x: "Node"
    experts: Experts
    activation: Activation
    columns: int


@dataclass(frozen=True, eq=False)
class Added:
    a: "Node"
    b: "Node"
    columns: int


@dataclass(frozen=True, eq=False)
class Scored:
    x: "Node"
    head: Linear
    soft_cap: float
    columns: int


Node: TypeAlias = Embedded | Normed | Projected | Rotated | Attended | Gated | Mixed | Added | Scored


def inputs(node: Node) -> tuple[Node, ...]:
    """The values that a node reads."""
    match node:
        case Embedded():
            return ()
        case Normed(x=x) | Projected(x=x) | Rotated(x=x) | Mixed(x=x) | Scored(x=x):
            return (x,)
        case Attended(q=q, k=k, v=v):
            return (q, k, v)
        case Gated(gate=a, up=b) | Added(a=a, b=b):
            return (a, b)


def record(path: Path, spec: ModelSpec, weights: Weights) -> list[Node]:
    """The nodes of a model in the order in which it makes them.

    Raises CheckpointError, naming the tensor, where shapes do not fit each other or this runtime.
    """
    ops = RecordingOps(path, spec)
    model_function(spec)(ops, spec, weights)
    return ops.nodes


class RecordingOps:
    def __init__(self, path: Path, spec: ModelSpec) -> None:
        self.nodes: list[Node] = []
        self._path, self._spec = path, spec

    def embed(self, table: Tensor, scale: float) -> Node:
        self._check(table, (self._spec.vocab, self._spec.width))
        return self._add(Embedded(table, scale, table.columns))

    def rms_norm(self, x: Node, weight: Tensor, eps: float) -> Node:
        if len(weight.shape) != 1 or weight.columns not in (x.columns, self._spec.head_dim):
            self._refuse(weight, f"a norm of {x.columns} columns or of heads of {self._spec.head_dim} is supported")
        return self._add(Normed(x, weight, eps, x.columns))

    def linear(self, x: Node, *layers: Linear) -> tuple[Node, ...]:
        return tuple(self._linear(x, layer) for layer in layers)

    def _linear(self, x: Node, layer: Linear) -> Node:
        rows = layer.weight.rows
        self._check_linear(layer, (rows, x.columns))
        return self._add(Projected(x, layer, rows))

    def rotary(self, x: Node, rope: Rope, head_dim: int) -> Node:
        if not 0 < rope.dims <= head_dim or rope.dims % 2:
            raise CheckpointError(
                self._path,
                f"rotates {rope.dims} of {head_dim} dimensions of a head; an even number of them is supported",
            )
        return self._add(Rotated(x, rope, x.columns))

    def attention(
        self,
        q: Node,
        k: Node,
        v: Node,
        layer: int,
        scale: float,
        window: int | None,
        soft_cap: float = 0.0,
        sinks: Tensor | None = None,
    ) -> Node:
        spec = self._spec
        if spec.head_dim % HEAD_DIM_UNIT or spec.heads % spec.kv_heads:
            raise CheckpointError(
                self._path,
                f"has {spec.heads} query heads and {spec.kv_heads} KV heads of {spec.head_dim} dimensions; "
                f"supported are multiples of {HEAD_DIM_UNIT} dimensions, and query heads that the KV heads divide",
            )
        for value, heads in ((q, spec.heads), (k, spec.kv_heads), (v, spec.kv_heads)):
            self._check_width(value, heads * spec.head_dim)
        if sinks is not None:
            self._check(sinks, (spec.heads,))
        return self._add(Attended(q, k, v, layer, scale, window, soft_cap, sinks, q.columns))

    def gated(self, gate: Node, up: Node, activation: Activation) -> Node:
        self._check_width(up, gate.columns)
        return self._add(Gated(gate, up, activation, gate.columns))

    def experts(self, x: Node, experts: Experts, activation: Activation) -> Node:
        self._check_linear(experts.router, (len(experts.each), x.columns))
        inner = experts.each[0].gate.weight.rows
        for expert in experts.each:
            self._check_linear(expert.gate, (inner, x.columns))
            self._check_linear(expert.up, (inner, x.columns))
            self._check_linear(expert.down, (x.columns, inner))
        return self._add(Mixed(x, experts, activation, x.columns))

    def add(self, a: Node, b: Node) -> Node:
        self._check_width(b, a.columns)
        return self._add(Added(a, b, a.columns))

    def logits(self, x: Node, head: Linear, soft_cap: float = 0.0) -> Node:
        self._check(head.weight, (self._spec.vocab, x.columns))
        return self._add(Scored(x, head, soft_cap, head.weight.rows))

    def _add(self, node: Node) -> Node:
        self.nodes.append(node)
        return node

    def _check_linear(self, layer: Linear, shape: tuple[int, int]) -> None:
        self._check(layer.weight, shape)
        if layer.bias is not None:
            self._check(layer.bias, shape[:1])

    def _check_width(self, value: Node, columns: int) -> None:
        if value.columns != columns:
            tensor = _shaped_by(value)
            self._check(tensor, (columns, tensor.columns))

    def _check(self, tensor: Tensor, shape: tuple[int, ...]) -> None:
        if tensor.shape != shape:
            self._refuse(tensor, f"{_written(shape)} fits the rest of the model")

    def _refuse(self, tensor: Tensor, supported: str) -> None:
        raise CheckpointError(self._path, f"tensor {tensor.name} has the shape {_written(tensor.shape)}; {supported}")


def _shaped_by(node: Node) -> Tensor:
    """The tensor that gave a value its width: what to name when the width is wrong."""
    match node:
        case Embedded(table=tensor) | Projected(layer=Linear(weight=tensor)) | Scored(head=Linear(weight=tensor)):
            return tensor
        case Attended(q=x) | Gated(up=x) | Added(b=x) | Normed(x=x) | Rotated(x=x) | Mixed(x=x):
            return _shaped_by(x)


def _written(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
