"""What the model functions ask of Ops, seen by an Ops that only writes it down."""

from typing import Any

import pytest

from lightwell.models import model_function
from lightwell.models.weights import arrange
from tests.tiny import tiny_checkpoint


class Recorder:
    """Every value is the number of the call that made it."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any) -> Any:
            self.calls.append((name, args))
            made = len(self.calls)
            return (made,) * (len(args) - 1) if name == "linear" else made

        return call


def record(**shape: Any) -> list[tuple[str, tuple[Any, ...]]]:
    checkpoint = tiny_checkpoint(**shape)
    ops = Recorder()
    model_function(checkpoint.spec)(ops, checkpoint.spec, arrange(checkpoint))
    return ops.calls


def names(**shape: Any) -> list[str]:
    return [name for name, _ in record(**shape)]


ATTENTION = ["rms_norm", "linear", "rotary", "rotary", "attention", "linear"]
NORMED = ["rms_norm", "linear", "rms_norm", "rotary", "rms_norm", "rotary", "attention", "linear"]
FEED_FORWARD = ["add", "rms_norm", "linear", "gated", "linear", "add"]
LLAMA_LAYER = [*ATTENTION, *FEED_FORWARD]


def test_a_llama_layer() -> None:
    assert names(layers=2) == ["embed", *LLAMA_LAYER, *LLAMA_LAYER, "rms_norm", "logits"]


def test_query_and_key_norms_come_before_the_rotation() -> None:
    assert names(layers=1, qk_norm=True) == ["embed", *NORMED, *FEED_FORWARD, "rms_norm", "logits"]


def test_a_gemma3_layer_norms_before_and_after_each_half() -> None:
    layer = [*NORMED, "rms_norm", "add", "rms_norm", "linear", "gated", "linear", "rms_norm", "add"]
    assert names(family="gemma3", layers=1) == ["embed", *layer, "rms_norm", "logits"]


def test_gemma3_layers_with_a_window_rotate_by_their_own_frequencies() -> None:
    calls = record(family="gemma3", layers=2, window=7)
    assert [args[5] for name, args in calls if name == "attention"] == [7, None]
    assert [args[1].theta for name, args in calls if name == "rotary"] == [500, 500, 10_000, 10_000]


@pytest.mark.parametrize("tied", [True, False])
def test_the_head_is_the_token_table_where_tied(tied: bool) -> None:
    checkpoint = tiny_checkpoint(tied=tied)
    weights = arrange(checkpoint)
    assert (weights.head.weight is weights.embed) == tied


def test_biases_are_arranged_with_their_weights() -> None:
    layer = arrange(tiny_checkpoint(biases=True)).layers[1]
    assert [linear.bias is not None for linear in (layer.q, layer.k, layer.v, layer.o)] == [True, True, True, False]
