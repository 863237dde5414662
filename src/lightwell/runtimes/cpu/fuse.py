"""From recorded nodes to the ops of a native plan: neighbours that the plan computes in one pass become one op.

What is fused: norms and rotation of heads into their projection, the gated activation into its two, the residual
addition into the projection (or its norm) before it, the final norm into the output head.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from lightwell.checkpoints.spec import Activation, Rope
from lightwell.checkpoints.tensor import Tensor
from lightwell.models.weights import Experts, Linear
from lightwell.runtimes.cpu.record import (
    Added,
    Attended,
    Embedded,
    Gated,
    Mixed,
    Node,
    Normed,
    Projected,
    Rotated,
    Scored,
    inputs,
)


@dataclass(frozen=True)
class Embed:
    result: Node
    table: Tensor
    scale: float


@dataclass(frozen=True)
class Norm:
    result: Node
    x: Node
    weight: Tensor
    eps: float


@dataclass(frozen=True)
class Project:
    result: Node
    x: Node
    layer: Linear


@dataclass(frozen=True)
class AddProject:
    """result = base + x @ layer."""

    result: Node
    base: Node
    x: Node
    layer: Linear


@dataclass(frozen=True)
class AddNorm:
    """result = base + norm(x)."""

    result: Node
    base: Node
    x: Node
    weight: Tensor
    eps: float


@dataclass(frozen=True)
class Add:
    result: Node
    base: Node
    x: Node


@dataclass(frozen=True)
class GateUp:
    result: Node
    x: Node
    gate: Linear
    up: Linear
    activation: Activation


@dataclass(frozen=True)
class QueryKeyValue:
    """``result`` are the queries; keys and values go to the cache of layer ``index``."""

    result: Node
    x: Node
    q: Linear
    k: Linear
    v: Linear
    q_norm: Tensor | None
    k_norm: Tensor | None
    eps: float
    rope: Rope | None
    index: int


@dataclass(frozen=True)
class Attend:
    result: Node
    q: Node
    index: int
    scale: float
    window: int | None
    soft_cap: float
    sinks: Tensor | None


@dataclass(frozen=True)
class Mix:
    result: Node
    x: Node
    experts: Experts
    activation: Activation


@dataclass(frozen=True)
class Score:
    x: Node
    norm: Tensor
    eps: float
    head: Linear
    soft_cap: float


Op: TypeAlias = Embed | Norm | Project | AddProject | AddNorm | Add | GateUp | Mix | QueryKeyValue | Attend | Score
Fused: TypeAlias = tuple[list[Op], list[Node]]  # ops, and the nodes besides their own that they compute


def fuse(nodes: Sequence[Node]) -> list[Op]:
    """Ops in the order in which they must run.

    Raises TypeError where a model puts operations together in a way that the plan has no op for.
    """
    readers = Counter(x for node in nodes for x in inputs(node))
    computed: set[Node] = set()
    ops: list[Op] = []
    for node in reversed(nodes):  # a node is part of what reads it, so readers come first
        if node in computed:
            continue
        new, absorbed = _fuse(node, readers)
        if any(readers[x] > 1 for x in absorbed):
            raise TypeError(f"{type(node).__name__} reads values that others read as well")
        computed.update(absorbed)
        ops += reversed(new)
    return ops[::-1]


def _fuse(node: Node, readers: Counter[Node]) -> Fused:
    match node:
        case Embedded():
            return [Embed(node, node.table, node.scale)], []
        case Normed(x=x) if node.weight.columns == x.columns:
            return [Norm(node, x, node.weight, node.eps)], []
        case Projected(x=x):
            return [Project(node, x, node.layer)], []
        case Attended():
            return _attention(node)
        case Gated(gate=Projected() as gate, up=Projected() as up) if gate.x is up.x:
            return [GateUp(node, gate.x, gate.layer, up.layer, node.activation)], [gate, up]
        case Mixed(x=x):
            return [Mix(node, x, node.experts, node.activation)], []
        case Added():
            return _addition(node, readers)
        case Scored(x=Normed() as normed):
            return [Score(normed.x, normed.weight, normed.eps, node.head, node.soft_cap)], [normed]
        case _:
            raise TypeError(f"the CPU runtime has no op for {type(node).__name__} of such values")


def _addition(node: Added, readers: Counter[Node]) -> Fused:
    for base, x in ((node.a, node.b), (node.b, node.a)):
        if readers[x] > 1:
            continue
        if isinstance(x, Projected):
            return [AddProject(node, base, x.x, x.layer)], [x]
        if isinstance(x, Normed):
            return [AddNorm(node, base, x.x, x.weight, x.eps)], [x]
    return [Add(node, node.a, node.b)], []


@dataclass(frozen=True)
class _Heads:
    """A projection, and what is done to each of its heads."""

    projected: Projected
    norm: Normed | None
    rotated: Rotated | None

    def nodes(self) -> list[Node]:
        return [node for node in (self.projected, self.norm, self.rotated) if node is not None]


def _heads(value: Node) -> _Heads:
    rotated = value if isinstance(value, Rotated) else None
    value = rotated.x if rotated else value
    norm = value if isinstance(value, Normed) else None
    value = norm.x if norm else value
    if not isinstance(value, Projected):
        raise TypeError(f"attention reads {type(value).__name__} where a projection is expected")
    return _Heads(value, norm, rotated)


def _attention(node: Attended) -> Fused:
    q, k, v = _heads(node.q), _heads(node.k), _heads(node.v)
    ropes = {heads.rotated.rope if heads.rotated else None for heads in (q, k)}
    eps = {heads.norm.eps for heads in (q, k) if heads.norm}
    sources = {heads.projected.x for heads in (q, k, v)}
    if len(ropes) > 1 or len(eps) > 1 or len(sources) > 1 or v.norm or v.rotated:
        raise TypeError("attention reads queries, keys and values that are made differently")
    projection = QueryKeyValue(
        result=node.q,
        x=q.projected.x,
        q=q.projected.layer,
        k=k.projected.layer,
        v=v.projected.layer,
        q_norm=q.norm.weight if q.norm else None,
        k_norm=k.norm.weight if k.norm else None,
        eps=eps.pop() if eps else 0.0,
        rope=ropes.pop(),
        index=node.layer,
    )
    attend = Attend(node, node.q, node.layer, node.scale, node.window, node.soft_cap, node.sinks)
    return [projection, attend], [*q.nodes(), *k.nodes(), *v.nodes()]
