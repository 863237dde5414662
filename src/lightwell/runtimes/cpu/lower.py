"""Fused ops onto a native plan: which buffer holds each value, in which form, and for how long."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lightwell.checkpoints.spec import Rope
from lightwell.models.rope import inverse_frequencies
from lightwell.models.weights import Linear
from lightwell.runtimes.cpu import _native
from lightwell.runtimes.cpu.fuse import (
    Add,
    AddNorm,
    AddProject,
    Attend,
    Embed,
    GateUp,
    Mix,
    Norm,
    Op,
    Project,
    QueryKeyValue,
    Score,
)
from lightwell.runtimes.cpu.record import Node
from lightwell.runtimes.cpu.weights import PackedWeights

_GROUP_COLUMNS = 32  # activations that share one int8 scale


def lower(ops: Sequence[Op], plan: _native.Plan, weights: PackedWeights, kv_head_columns: int) -> None:
    """Add the ops to the plan. ``kv_head_columns``: attention output columns that belong to one KV head."""
    lowering = _Lowering(plan, weights, _readers(ops, weights), kv_head_columns)
    for op in ops:
        lowering.add(op)
        lowering.release(op)


@dataclass
class _Readers:
    """The last op that reads a value, and what its readers need: int8 or floats to multiply, or floats besides."""

    last: Op
    int8: bool = False
    float_products: bool = False
    floats: bool = False


class _Buffer(NamedTuple):
    columns: int
    floats: bool
    quantized: bool


class _Lowering:
    def __init__(
        self, plan: _native.Plan, weights: PackedWeights, readers: dict[Node, _Readers], kv_head_columns: int
    ) -> None:
        self._plan, self._weights, self._readers = plan, weights, readers
        self._attention_quantizes = kv_head_columns % _GROUP_COLUMNS == 0
        self._ropes: dict[Rope, int] = {}
        self._kinds: dict[int, _Buffer] = {}
        self._free: defaultdict[_Buffer, list[int]] = defaultdict(list)
        self._values: dict[Node, int] = {}  # the buffer to read floats from, besides for products
        self._operands: dict[Node, int] = {}  # the buffer to multiply from: mostly the same

    def add(self, op: Op) -> None:
        plan, weights = self._plan, self._weights
        match op:
            case Embed():
                plan.embed(weights.matrix(op.table), op.scale, self._make(op.result, quantizes=True))
            case Norm():
                x, out = self._values[op.x], self._make(op.result, quantizes=True)
                plan.norm(x, weights.vector(op.weight), op.eps, out)
            case Project():
                plan.linear(self._operands[op.x], weights.projection(op.layer), self._make(op.result), add=False)
                self._finish(op.result)
            case AddProject():
                out = self._extend(op.base, op)
                plan.linear(self._operands[op.x], weights.projection(op.layer), out, add=True)
                self._finish(op.result)
            case AddNorm():
                out = self._extend(op.base, op)
                plan.add_norm(self._values[op.x], weights.vector(op.weight), op.eps, out)
                self._finish(op.result)
            case Add():
                plan.add(self._values[op.x], self._extend(op.base, op))
                self._finish(op.result)
            case GateUp():
                gate, up = weights.projection(op.gate), weights.projection(op.up)
                out = self._make(op.result, quantizes=True)
                plan.gated(self._operands[op.x], gate, up, op.activation, out)
            case Mix():
                self._mix(op)
            case QueryKeyValue():
                self._query_key_value(op)
            case Attend():
                out = self._make(op.result, quantizes=self._attention_quantizes)
                sinks = None if op.sinks is None else weights.vector(op.sinks)
                plan.attention(self._values[op.q], op.index, op.scale, op.window or 0, op.soft_cap, sinks, out)
                self._finish(op.result)
            case Score():
                norm, head = weights.vector(op.norm), weights.projection(op.head)
                quantize = weights.takes_int8(op.head.weight)
                plan.logits(self._values[op.x], norm, op.eps, head, op.soft_cap, quantize)

    def release(self, op: Op) -> None:
        """Give back the buffers of values that nobody reads after this op."""
        for value in _reads(op):
            if self._readers[value].last is op and value in self._values:
                values = self._values.pop(value)
                self._give_back(values)
                self._give_back(self._operands.pop(value), still_used=values)

    def _query_key_value(self, op: QueryKeyValue) -> None:
        weights = self._weights
        q, k, v = (weights.projection(layer) for layer in (op.q, op.k, op.v))
        q_norm, k_norm = (None if norm is None else weights.vector(norm) for norm in (op.q_norm, op.k_norm))
        rope = None if op.rope is None else self._rope(op.rope)
        out = self._make(op.result)
        self._plan.qkv(self._operands[op.x], q, k, v, q_norm, k_norm, op.eps, rope, op.index, out)

    def _mix(self, op: Mix) -> None:
        weights, experts = self._weights, op.experts
        projection = weights.projection
        each = [(projection(e.gate), projection(e.up), projection(e.down)) for e in experts.each]
        quantize = any(weights.takes_int8(expert.down.weight) for expert in experts.each)
        out = self._make(op.result, quantizes=True)
        self._plan.experts(
            self._operands[op.x],
            weights.projection(experts.router),
            each,
            experts.per_token,
            experts.normalized,
            op.activation,
            quantize,
            out,
        )

    def _rope(self, rope: Rope) -> int:
        if rope not in self._ropes:
            factor = rope.scaling.attention_factor if rope.scaling else 1.0
            self._ropes[rope] = self._plan.rope(inverse_frequencies(rope).tolist(), factor, rope.interleaved)
        return self._ropes[rope]

    def _make(self, value: Node, *, quantizes: bool = False) -> int:
        """The buffer for an op to write a value into. ``quantizes``: the op itself can write int8."""
        readers = self._readers[value]
        if quantizes and readers.int8:
            self._values[value] = self._take(value, readers.floats or readers.float_products, True)
            self._operands[value] = self._values[value]
        else:
            self._values[value] = self._take(value, True, False)
            self._make_operand(value)
        return self._values[value]

    def _extend(self, base: Node, op: AddProject | AddNorm | Add) -> int:
        """The buffer that holds ``base`` and will hold the op's result: a copy where the base itself is still read."""
        if self._readers[base].last is op and op.x is not base:
            self._values[op.result] = self._values.pop(base)
            self._give_back(self._operands.pop(base), still_used=self._values[op.result])
        else:
            self._values[op.result] = self._take(op.result, True, False)
            self._plan.put(self._values[base], self._values[op.result])
        self._make_operand(op.result)
        return self._values[op.result]

    def _make_operand(self, value: Node) -> None:
        readers = self._readers[value]
        separate = self._take(value, readers.float_products, True) if readers.int8 else None
        self._operands[value] = self._values[value] if separate is None else separate

    def _finish(self, value: Node) -> None:
        """Bring a value that was written as floats into the form that products read."""
        if self._operands[value] != self._values[value]:
            self._plan.put(self._values[value], self._operands[value])

    def _give_back(self, buffer: int, still_used: int | None = None) -> None:
        if buffer != still_used:
            self._free[self._kinds[buffer]].append(buffer)

    def _take(self, value: Node, floats: bool, quantized: bool) -> int:
        kind = _Buffer(value.columns, floats, quantized)
        if self._free[kind]:
            return self._free[kind].pop()
        buffer = self._plan.buffer(value.columns, floats, quantized)
        self._kinds[buffer] = kind
        return buffer


def _readers(ops: Sequence[Op], weights: PackedWeights) -> dict[Node, _Readers]:
    readers: dict[Node, _Readers] = {}
    for op in ops:
        for value in _reads(op):
            readers.setdefault(value, _Readers(op)).last = op
        for value in _float_reads(op):
            readers[value].floats = True
        if multiplied := products(op):
            value, layers = multiplied
            int8 = [weights.takes_int8(layer.weight) for layer in layers]
            readers[value].int8 |= any(int8)
            readers[value].float_products |= not all(int8)
    return readers


def _reads(op: Op) -> tuple[Node, ...]:
    multiplied = products(op)
    return _float_reads(op) if multiplied is None else (*_float_reads(op), multiplied[0])


def products(op: Op) -> tuple[Node, tuple[Linear, ...]] | None:
    """The value that an op multiplies with matrices, and the matrices."""
    match op:
        case Project(x=x, layer=layer) | AddProject(x=x, layer=layer):
            return x, (layer,)
        case GateUp(x=x, gate=gate, up=up):
            return x, (gate, up)
        case QueryKeyValue(x=x, q=q, k=k, v=v):
            return x, (q, k, v)
        case Mix(x=x, experts=experts):
            return x, (experts.router, *(layer for expert in experts.each for layer in (expert.gate, expert.up)))
        case _:
            return None


def _float_reads(op: Op) -> tuple[Node, ...]:
    match op:
        case Norm(x=x) | Attend(q=x) | Score(x=x):
            return (x,)
        case AddNorm(base=base, x=x) | Add(base=base, x=x):
            return base, x
        case AddProject(base=base):
            return (base,)
        case _:
            return ()
