"""Recording a model, fusing what it did, and giving its values buffers."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightwell.checkpoints.checkpoint import Checkpoint
from lightwell.checkpoints.spec import Rope
from lightwell.checkpoints.tensor import Format, Tensor
from lightwell.errors import CheckpointError
from lightwell.models.weights import Linear, arrange
from lightwell.runtimes.cpu.fuse import Op, QueryKeyValue, fuse
from lightwell.runtimes.cpu.lower import lower
from lightwell.runtimes.cpu.record import Node, RecordingOps, record
from lightwell.runtimes.cpu.weights import PackedWeights
from tests.tiny import tiny_checkpoint


def recorded(checkpoint: Checkpoint) -> list[Node]:
    return record(checkpoint.path, checkpoint.spec, arrange(checkpoint))


def kinds(ops: list[Any]) -> list[str]:
    return [type(op).__name__ for op in ops]


def with_shape(checkpoint: Checkpoint, name: str, shape: tuple[int, ...]) -> Checkpoint:
    data = np.zeros(int(np.prod(shape)) * 4, np.uint8)
    return replace(checkpoint, tensors={**checkpoint.tensors, name: Tensor(name, Format.F32, shape, data)})


def test_records_what_the_model_does_in_order() -> None:
    nodes = recorded(tiny_checkpoint(layers=1, qk_norm=True))
    attention = ["Normed", "Projected", "Projected", "Projected", "Normed", "Rotated", "Normed", "Rotated", "Attended"]
    feed_forward = ["Normed", "Projected", "Projected", "Gated", "Projected", "Added"]
    assert kinds(nodes) == ["Embedded", *attention, "Projected", "Added", *feed_forward, "Normed", "Scored"]


@pytest.mark.parametrize(
    ("name", "shape", "complaint"),
    [
        ("layers.1.q.weight", (96, 64), "tensor layers.1.q.weight has the shape 96 x 64; 128 x 64 fits"),
        ("layers.0.k.weight", (32, 64), "tensor layers.0.k.weight has the shape 32 x 64; 64 x 64 fits"),
        ("layers.0.k.weight", (64, 32), "tensor layers.0.k.weight has the shape 64 x 32; 64 x 64 fits"),
        ("layers.0.o.weight", (64, 64), "tensor layers.0.o.weight has the shape 64 x 64; 64 x 128 fits"),
        ("layers.0.o.weight", (32, 128), "tensor layers.0.o.weight has the shape 32 x 128; 64 x 128 fits"),
        ("layers.0.up.weight", (64, 64), "tensor layers.0.up.weight has the shape 64 x 64; 96 x 64 fits"),
        ("layers.0.ffn_norm.weight", (48,), "tensor layers.0.ffn_norm.weight has the shape 48; a norm of 64 columns"),
        ("embed.weight", (99, 64), "tensor embed.weight has the shape 99 x 64; 100 x 64 fits"),
        ("head.weight", (101, 64), "tensor head.weight has the shape 101 x 64; 100 x 64 fits"),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(name: str, shape: tuple[int, ...], complaint: str) -> None:
    checkpoint = with_shape(tiny_checkpoint(tied=False), name, shape)
    with pytest.raises(CheckpointError, match=f"^tiny: {complaint}"):
        recorded(checkpoint)


def test_a_bias_that_does_not_fit_is_named() -> None:
    checkpoint = with_shape(tiny_checkpoint(biases=True), "layers.0.v.bias", (32,))
    with pytest.raises(CheckpointError, match=r"tensor layers\.0\.v\.bias has the shape 32; 64 fits"):
        recorded(checkpoint)


def test_an_odd_rotation_is_refused() -> None:
    with pytest.raises(CheckpointError, match="rotates 15 of 32 dimensions"):
        recorded(tiny_checkpoint(rope=Rope(theta=1e4, dims=15, interleaved=True)))


def test_a_llama_layer_is_four_products_and_two_norms() -> None:
    ops = fuse(recorded(tiny_checkpoint(layers=2, biases=True)))
    layer = ["Norm", "QueryKeyValue", "Attend", "AddProject", "Norm", "GateUp", "AddProject"]
    assert kinds(ops) == ["Embed", *layer, *layer, "Score"]


def test_a_gemma_layer_adds_the_norms_of_its_halves() -> None:
    ops = fuse(recorded(tiny_checkpoint(layers=1, family="gemma3", window=8)))
    attention = ["Norm", "QueryKeyValue", "Attend", "Project", "AddNorm"]
    assert kinds(ops) == ["Embed", *attention, "Norm", "GateUp", "Project", "AddNorm", "Score"]
    (projection,) = [op for op in ops if isinstance(op, QueryKeyValue)]
    assert projection.q_norm is not None
    assert projection.rope is not None
    assert projection.rope.theta == 500


def test_experts_stand_for_the_feed_forward_network_of_a_layer() -> None:
    ops = fuse(recorded(tiny_checkpoint(layers=1, family="mixtral")))
    assert kinds(ops) == ["Embed", "Norm", "QueryKeyValue", "Attend", "AddProject", "Norm", "Mix", "Add", "Score"]


@pytest.mark.parametrize(
    ("name", "shape", "complaint"),
    [
        ("layers.0.router.weight", (3, 64), "3 x 64; 4 x 64 fits"),
        ("layers.0.experts.3.gate.weight", (64, 64), "64 x 64; 96 x 64 fits"),
        ("layers.0.experts.2.down.weight", (96, 96), "96 x 96; 64 x 96 fits"),
    ],
)
def test_an_expert_that_does_not_fit_is_named(name: str, shape: tuple[int, ...], complaint: str) -> None:
    checkpoint = with_shape(tiny_checkpoint(family="mixtral"), name, shape)
    with pytest.raises(CheckpointError, match=f"tensor {name} has the shape {complaint}"):
        recorded(checkpoint)


class Model:
    """Operations written by hand on a tiny model's tensors."""

    def __init__(self) -> None:
        self.checkpoint = tiny_checkpoint(layers=1, heads=2, kv_heads=2, head_dim=32, ffn_width=64)
        self.weights = arrange(self.checkpoint)
        self.layer = self.weights.layers[0]
        self.ops = RecordingOps(Path("tiny"), self.checkpoint.spec)
        self.x = self.ops.embed(self.weights.embed, 1.0)

    def linear(self, x: Node, layer: Linear) -> Node:
        return self.ops.linear(x, layer)[0]

    def fused(self) -> list[Op]:
        return fuse(self.ops.nodes)


def test_a_projection_that_is_read_twice_is_not_swallowed_by_an_addition() -> None:
    model = Model()
    y = model.linear(model.x, model.layer.o)
    model.ops.add(model.ops.add(model.x, y), y)
    assert kinds(model.fused()) == ["Embed", "Project", "Add", "Add"]


def test_a_projection_may_stand_on_either_side_of_an_addition() -> None:
    model = Model()
    model.ops.add(model.linear(model.x, model.layer.o), model.x)
    assert kinds(model.fused()) == ["Embed", "AddProject"]


@pytest.mark.parametrize("make", ["heads norm", "gated", "attention", "scores"])
def test_what_the_plan_has_no_op_for_is_refused(make: str) -> None:
    model = Model()
    ops, x = model.ops, model.x
    if make == "heads norm":
        norm = Tensor("n", Format.F32, (32,), np.zeros(128, np.uint8))
        ops.rms_norm(x, norm, 1e-5)
    elif make == "gated":
        ops.gated(x, x, "silu")
    elif make == "attention":
        ops.attention(x, x, x, 0, 1.0, None)
    else:
        ops.logits(x, model.weights.head)
    with pytest.raises(TypeError, match=r"no op for|where a projection is expected"):
        model.fused()


class FakePlan:
    """Notes what it is asked; buffers are numbers."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any] | tuple[Any, ...]]] = []
        self.buffers: list[tuple[int, bool, bool]] = []

    def buffer(self, columns: int, floats: bool, quantized: bool) -> int:
        self.buffers.append((columns, floats, quantized))
        return len(self.buffers) - 1

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **options: Any) -> int:
            self.calls.append((name, (*args, *options.values())))
            return 0

        return call


def lowered(checkpoint: Checkpoint, kv_head_columns: int = 64) -> FakePlan:
    return lowered_ops(fuse(recorded(checkpoint)), checkpoint, kv_head_columns)


def lowered_ops(ops: list[Op], checkpoint: Checkpoint, kv_head_columns: int = 64) -> FakePlan:
    matrices = [tensor for tensor in checkpoint.tensors.values() if len(tensor.shape) == 2]
    plan = FakePlan()
    weights = PackedWeights(checkpoint, matrices, 1, int8_activations=True, cached=False)
    lower(ops, plan, weights, kv_head_columns)  # type: ignore[arg-type]
    return plan


def test_buffers_are_used_again_however_many_layers_there_are() -> None:
    few, many = (lowered(tiny_checkpoint(layers=layers, format=Format.Q8_0)) for layers in (1, 9))
    assert few.buffers == many.buffers
    assert len(many.buffers) <= 5


def test_the_stream_stays_in_one_buffer() -> None:
    plan = lowered(tiny_checkpoint(layers=3, format=Format.Q8_0))
    additions = [args for name, args in plan.calls if name == "linear"]
    assert len({args[2] for args in additions}) == 1
    assert all(args[0] != args[2] for args in additions)


def test_int8_weights_read_int8_and_plain_weights_read_floats() -> None:
    int8 = lowered(tiny_checkpoint(format=Format.Q8_0)).buffers
    assert (96, False, True) in int8  # the gated values are only multiplied
    assert all(not quantized for _, _, quantized in lowered(tiny_checkpoint(format=Format.BF16)).buffers)


def test_a_router_of_floats_reads_floats_where_experts_read_int8() -> None:
    checkpoint = tiny_checkpoint(family="mixtral", format=Format.Q8_0)
    router = checkpoint.tensors["layers.0.q.weight"]
    int8_router = replace(router, name="r", shape=(4, 64), data=router.data[: 4 * 68])
    routers = {f"layers.{layer}.router.weight": int8_router for layer in range(2)}
    int8 = replace(checkpoint, tensors={**checkpoint.tensors, **routers})
    for stored, forms in ((checkpoint, (64, True, True)), (int8, (64, False, True))):
        plan = lowered(stored)
        assert [plan.buffers[args[0]] for name, args in plan.calls if name == "experts"] == [forms] * 2


def test_heads_that_do_not_fill_int8_groups_are_quantized_afterwards() -> None:
    checkpoint = tiny_checkpoint(format=Format.Q8_0, heads=2, kv_heads=2, head_dim=16)
    plan = lowered(checkpoint, kv_head_columns=16)
    assert Counter(name for name, _ in plan.calls)["put"] == checkpoint.spec.layers


def test_a_base_that_is_read_again_is_copied_before_it_is_added_to() -> None:
    model = Model()
    y = model.ops.add(model.x, model.linear(model.x, model.layer.o))
    z = model.ops.add(model.x, model.linear(y, model.layer.o))
    model.ops.logits(model.ops.rms_norm(z, model.weights.final_norm, 1e-5), model.weights.head)
    plan = lowered_ops(model.fused(), model.checkpoint)
    (embed,), (copy,) = ([args for name, args in plan.calls if name == kind] for kind in ("embed", "put"))
    first, second = (args[2] for name, args in plan.calls if name == "linear")
    assert copy == (embed[2], first)
    assert second == embed[2] != first


def test_a_base_that_is_also_multiplied_is_copied() -> None:
    model = Model()
    y = model.ops.add(model.x, model.linear(model.x, model.layer.o))
    model.ops.logits(model.ops.rms_norm(y, model.weights.final_norm, 1e-5), model.weights.head)
    plan = lowered_ops(model.fused(), model.checkpoint)
    ((x, _, out, _),) = [args for name, args in plan.calls if name == "linear"]
    assert x != out
    assert ("put", (x, out)) in plan.calls
