"""The CPU runtime against the reference, and against itself: the same bits however the work is cut."""

import os
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightwell.checkpoints import open_checkpoint
from lightwell.checkpoints.checkpoint import Checkpoint
from lightwell.checkpoints.spec import Mixture, Rope, RopeScaling
from lightwell.checkpoints.tensor import Format
from lightwell.errors import CheckpointError, StartupError
from lightwell.runtimes.base import KVCacheDtype, Runtime, StepInput
from lightwell.runtimes.cpu import CpuRuntime, _native, threads
from lightwell.runtimes.reference import ReferenceRuntime
from lightwell.sampling.params import SamplingParams
from lightwell.sampling.reference import choose, log_probabilities
from lightwell.text import load_tokenizer
from tests.steps import Chunk, blocks_for, generate, step_of
from tests.tiny import KINDS, as_tensor, examples, tiny_checkpoint, tiny_shapes

Floats = npt.NDArray[np.float32]
BLOCKS = 64
ISAS = _native.available_isas()


each_kv_dtype = pytest.mark.parametrize("kv_cache_dtype", ["f16", "int8"])


class RoundingReference(ReferenceRuntime):
    """The reference with keys and values rounded as the CPU runtime's cache has them."""

    def __init__(self, kv_cache_dtype: KVCacheDtype = "f16") -> None:
        self._kv_cache_dtype = kv_cache_dtype

    def allocate(self, blocks: int) -> None:
        super().allocate(blocks)
        for cache in self._caches:
            write = cache.write
            cache.write = lambda table, start, *rows, write=write: write(table, start, *map(self._round, rows))

    def _round(self, x: Floats) -> Floats:
        if self._kv_cache_dtype == "f16":
            return x.astype(np.float16).astype(np.float32)
        heads = x.reshape(-1, self._spec.head_dim)
        scale = np.abs(heads).max(axis=1, keepdims=True) / 127
        return np.asarray(np.rint(heads / np.maximum(scale, np.float32(1e-30))) * scale, np.float32).reshape(x.shape)


def loaded(checkpoint: Checkpoint, runtime: Runtime | None = None, isa: str = ISAS[0], **options: Any) -> Runtime:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LIGHTWELL_CPU_ISA", isa)
        runtime = runtime or CpuRuntime(**{"threads": 2} | options)
    runtime.load(checkpoint)
    runtime.allocate(BLOCKS)
    return runtime


def scores(runtime: Runtime, checkpoint: Checkpoint, *chunks: Chunk) -> Floats:
    step = step_of(*chunks)
    logits = np.full((len(step.logit_rows), checkpoint.spec.vocab), np.nan, np.float32)
    runtime.execute(step, logits)
    return logits


def every_row(
    runtime: Runtime,
    checkpoint: Checkpoint,
    tokens: list[int],
    cuts: Sequence[int] = (),
    table: Sequence[int] | None = None,
) -> Floats:
    """Scores after every token, computed in chunks that end at ``cuts``."""
    table = table or list(range(blocks_for(len(tokens))))
    ends = [*cuts, len(tokens)]
    chunks = [Chunk(tokens[a:b], a, table, draw=range(b - a)) for a, b in zip([0, *cuts], ends, strict=True)]
    return np.concatenate([scores(runtime, checkpoint, chunk) for chunk in chunks])


def random_tokens(checkpoint: Checkpoint, count: int, seed: int = 1) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, checkpoint.spec.vocab, count)]


def assert_close(actual: Floats, expected: Floats, relative: float = 1e-3) -> None:
    assert np.abs(actual - expected).max() <= relative * np.abs(expected).max()


def assert_like_the_reference(
    checkpoint: Checkpoint, count: int, kv_cache_dtype: KVCacheDtype = "f16", **options: Any
) -> None:
    tokens = random_tokens(checkpoint, count)
    expected = every_row(loaded(checkpoint, RoundingReference(kv_cache_dtype)), checkpoint, tokens)
    options |= {"activations": "float32", "kv_cache_dtype": kv_cache_dtype}
    actual = every_row(loaded(checkpoint, **options), checkpoint, tokens)
    # A key that lies between two integers may become the other one in the other arithmetic.
    assert_close(actual, expected, relative=1e-3 if kv_cache_dtype == "f16" else 1e-2)


counts = st.one_of(st.integers(1, 100), st.sampled_from([32, 64, 256]))  # these fill all blocks of the sequence
kv_dtypes = st.sampled_from(["f16", "int8"])


@pytest.mark.parametrize("isa", ISAS)
@examples(20)
@given(shape=tiny_shapes(), seed=st.integers(0, 1000), count=counts, dtype=kv_dtypes)
def test_equals_the_reference(isa: str, shape: dict[str, Any], seed: int, count: int, dtype: KVCacheDtype) -> None:
    assert_like_the_reference(tiny_checkpoint(seed, **shape), count, dtype, isa=isa)


@pytest.mark.parametrize("isa", ISAS)
@examples(12)
@given(shape=tiny_shapes(group_values=32), format=st.sampled_from([Format.Q4_0, Format.Q4_1, Format.Q5_1, Format.Q8_0]))
def test_equals_the_reference_with_quantized_weights(isa: str, shape: dict[str, Any], format: Format) -> None:
    assert_like_the_reference(tiny_checkpoint(**shape, format=format), 40, isa=isa)


@each_kv_dtype
@pytest.mark.parametrize("window", [None, 1, 70, 256, 300])
def test_equals_the_reference_in_contexts_of_several_partitions(
    window: int | None, kv_cache_dtype: KVCacheDtype
) -> None:
    assert_like_the_reference(tiny_checkpoint(window=window), 600, kv_cache_dtype)


def test_a_window_wider_than_any_context_is_none() -> None:
    tokens = random_tokens(tiny_checkpoint(), 40)
    unbounded, widest = (
        every_row(loaded(tiny_checkpoint(window=w)), tiny_checkpoint(), tokens) for w in (None, 2**63 - 1)
    )
    assert np.array_equal(unbounded, widest)


@each_kv_dtype
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("family", KINDS)
def test_every_family_equals_the_reference(isa: str, family: Any, kv_cache_dtype: KVCacheDtype) -> None:
    checkpoint = tiny_checkpoint(family=family, window=40, biases=True, qk_norm=True)
    assert_like_the_reference(checkpoint, 80, kv_cache_dtype, isa=isa)


@pytest.mark.parametrize(
    "rope",
    [
        Rope(theta=10_000, dims=16, interleaved=True),
        Rope(theta=10_000, dims=16, interleaved=False),
        Rope(1e6, 32, False, RopeScaling("yarn", factor=4, original_context=64, attention_factor=1.2)),
        Rope(1e4, 32, False, RopeScaling("llama3", factor=8, original_context=64)),
        Rope(1e4, 32, True, RopeScaling("linear", factor=2)),
    ],
)
def test_rotates_as_the_reference_does(rope: Rope) -> None:
    assert_like_the_reference(tiny_checkpoint(rope=rope, head_dim=32), 100)


@pytest.mark.parametrize("format", [Format.Q4_0, Format.Q4_1, Format.Q5_0, Format.Q8_0, Format.Q4_K, Format.Q6_K])
def test_int8_activations_stay_close_to_the_reference(format: Format) -> None:
    checkpoint = tiny_checkpoint(format=format, width=256, ffn_width=256, heads=4, head_dim=64)
    tokens = random_tokens(checkpoint, 100)
    expected = every_row(loaded(checkpoint, RoundingReference()), checkpoint, tokens)
    actual = every_row(loaded(checkpoint), checkpoint, tokens)
    assert np.abs(actual - expected).mean() <= 0.02 * np.abs(expected).mean()
    assert not np.array_equal(actual, every_row(loaded(checkpoint, activations="float32"), checkpoint, tokens))


def test_unquantized_weights_are_multiplied_as_they_are() -> None:
    checkpoint = tiny_checkpoint(format=Format.BF16)
    tokens = random_tokens(checkpoint, 40)
    exact = every_row(loaded(checkpoint, activations="float32"), checkpoint, tokens)
    assert np.array_equal(every_row(loaded(checkpoint), checkpoint, tokens), exact)


def test_a_model_may_mix_formats() -> None:
    """Down projections in BF16 beside int8 ones, and a V that needs floats where Q and K take int8."""
    checkpoint = tiny_checkpoint(format=Format.Q8_0)
    plain = tiny_checkpoint(format=Format.BF16).tensors
    mixed = {name: plain[name] if ".v." in name or ".down." in name else t for name, t in checkpoint.tensors.items()}
    checkpoint = replace(checkpoint, tensors=mixed)
    assert_like_the_reference(checkpoint, 40)
    tokens = random_tokens(checkpoint, 40)
    expected = every_row(loaded(checkpoint, RoundingReference()), checkpoint, tokens)
    assert_close(every_row(loaded(checkpoint), checkpoint, tokens), expected, relative=0.05)


@pytest.mark.parametrize(("experts", "per_token"), [(1, 1), (2, 2), (40, 1), (70, 8)])
@pytest.mark.parametrize("normalized", [True, False])
def test_mixtures_of_any_size_equal_the_reference(experts: int, per_token: int, normalized: bool) -> None:
    mixture = Mixture(experts, per_token, ffn_width=32, normalized=normalized, dense_layers=frozenset({1}))
    assert_like_the_reference(tiny_checkpoint(layers=3, mixture=mixture), 150)


def sent_to(expert: int, checkpoint: Checkpoint) -> Checkpoint:
    """The model with routers (which must have biases) that give every row to this expert."""
    biases = {
        name: as_tensor(name, 100 * (np.arange(*tensor.shape) == expert).astype(np.float32), Format.F32)
        for name, tensor in checkpoint.tensors.items()
        if name.endswith("router.bias")
    }
    return replace(checkpoint, tensors=checkpoint.tensors | biases)


@pytest.mark.parametrize("isa", ISAS)
@examples(8)
@given(experts=st.integers(1, 40), data=st.data(), count=st.integers(1, 150), format=st.sampled_from(["F32", "Q8_0"]))
def test_all_rows_may_go_to_one_expert(
    isa: str, experts: int, data: st.DataObject, count: int, format: Literal["F32", "Q8_0"]
) -> None:
    mixture = Mixture(experts, 1, ffn_width=32, normalized=True)
    model = tiny_checkpoint(family="gpt-oss", layers=1, mixture=mixture, format=Format[format])
    checkpoint = sent_to(data.draw(st.integers(0, experts - 1), "expert"), model)
    assert_like_the_reference(checkpoint, count, isa=isa)
    tokens = random_tokens(checkpoint, count)
    whole = every_row(loaded(checkpoint, isa=isa), checkpoint, tokens)
    assert np.array_equal(every_row(loaded(checkpoint, isa=isa), checkpoint, tokens, cuts=range(1, count)), whole)


def test_experts_may_mix_formats() -> None:
    """A router in floats as files have it, and down projections in BF16 beside int8 ones."""
    checkpoint, plain = (tiny_checkpoint(family="mixtral", format=kind) for kind in (Format.Q8_0, Format.BF16))
    swapped = ("experts.1.down", "experts.2.up")
    mixed = {
        name: plain.tensors[name] if any(part in name for part in swapped) else tensor
        for name, tensor in checkpoint.tensors.items()
    }
    checkpoint = replace(checkpoint, tensors=mixed)
    assert_like_the_reference(checkpoint, 40)
    tokens = random_tokens(checkpoint, 40)
    whole = every_row(loaded(checkpoint), checkpoint, tokens)
    assert np.array_equal(every_row(loaded(checkpoint), checkpoint, tokens, cuts=range(1, 40)), whole)


def test_layers_with_experts_share_what_they_need_while_they_run() -> None:
    few, many = (
        CpuRuntime(threads=1).load(tiny_checkpoint(family="mixtral", layers=layers)).workspace_bytes
        for layers in (1, 9)
    )
    assert few == many
    dense = CpuRuntime(threads=1).load(tiny_checkpoint(layers=1)).workspace_bytes
    assert few - dense >= 512 * 2 * 4 * (64 + 96 + 64) - 512 * 4 * 96  # two assignments a row, less one gated value


# The same bits, however the work is cut


def strangers(checkpoint: Checkpoint, count: int, first_block: int) -> list[Chunk]:
    """Other sequences in the step, some of them in the middle of their text, each in its own blocks."""
    sizes = [1 + 7 * i % 50 for i in range(count)]
    tables = [[first_block + 2 * i, first_block + 2 * i + 1] for i in range(count)]
    return [
        Chunk(random_tokens(checkpoint, size, seed=i), start=i % 3 * 5 % (64 - size), table=table)
        for i, (size, table) in enumerate(zip(sizes, tables, strict=True))
    ]


FORMATS = [Format.F32, Format.BF16, Format.Q4_1, Format.Q8_0]


@pytest.mark.parametrize("isa", ISAS)
@examples(15)
@given(data=st.data(), shape=tiny_shapes(group_values=32), format=st.sampled_from(FORMATS))
def test_chunks_block_tables_and_strangers_do_not_change_a_bit(
    isa: str, data: st.DataObject, shape: dict[str, Any], format: Format
) -> None:
    checkpoint = tiny_checkpoint(5, **shape, format=format)
    dtype = data.draw(kv_dtypes)
    tokens = random_tokens(checkpoint, data.draw(st.integers(2, 300)))
    whole = every_row(loaded(checkpoint, isa=isa, threads=1, kv_cache_dtype=dtype), checkpoint, tokens)

    runtime = loaded(checkpoint, isa=isa, threads=data.draw(st.integers(1, 4)), kv_cache_dtype=dtype)
    table = data.draw(st.permutations(range(20)))[: blocks_for(len(tokens))]
    cuts = sorted(data.draw(st.sets(st.integers(1, len(tokens) - 1), max_size=6)))
    assert np.array_equal(every_row(runtime, checkpoint, tokens, cuts, table), whole)

    cut = data.draw(st.integers(0, len(tokens) - 1))
    own = Chunk(tokens[cut:], cut, table, draw=range(len(tokens) - cut))
    others = strangers(checkpoint, data.draw(st.integers(1, 20)), first_block=20)
    place = data.draw(st.integers(0, len(others)))
    beside = scores(runtime, checkpoint, *others[:place], own, *others[place:])
    assert np.array_equal(beside[place : place + len(tokens) - cut], whole[cut:])


@each_kv_dtype
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("window", [None, 100])
def test_one_token_at_a_time_equals_a_whole_prompt(isa: str, window: int | None, kv_cache_dtype: KVCacheDtype) -> None:
    checkpoint = tiny_checkpoint(format=Format.Q4_1, window=window, heads=6, head_dim=16)
    tokens = random_tokens(checkpoint, 600)
    whole = every_row(loaded(checkpoint, isa=isa, kv_cache_dtype=kv_cache_dtype), checkpoint, tokens)
    single = every_row(
        loaded(checkpoint, isa=isa, kv_cache_dtype=kv_cache_dtype), checkpoint, tokens, cuts=range(1, 600)
    )
    assert np.array_equal(single, whole)


def test_rows_that_need_no_token_cost_no_scores_and_change_nothing() -> None:
    checkpoint = tiny_checkpoint(format=Format.Q8_0)
    tokens, table = random_tokens(checkpoint, 50), [3, 4]
    whole = every_row(loaded(checkpoint), checkpoint, tokens)
    runtime = loaded(checkpoint)
    output = runtime.execute(step_of(Chunk(tokens[:40], 0, table, draw=[])))
    assert output.tokens.shape == (0,)
    assert np.array_equal(scores(runtime, checkpoint, Chunk(tokens[40:], 40, table, draw=[2, 9])), whole[[42, 49]])


def test_many_logit_rows_are_scored_in_turns() -> None:
    checkpoint = tiny_checkpoint()
    tokens = random_tokens(checkpoint, 200)
    whole = every_row(loaded(checkpoint), checkpoint, tokens)
    runtime = loaded(checkpoint)
    step = step_of(Chunk(tokens, 0, list(range(7)), draw=range(200)))
    assert np.array_equal(runtime.execute(step).tokens, whole.argmax(axis=1))


# Drawing tokens


def test_draws_as_the_definition_of_sampling_says() -> None:
    checkpoint = tiny_checkpoint()
    params = [
        SamplingParams(temperature=0),
        SamplingParams(temperature=1, seed=2**64 - 1),
        SamplingParams(temperature=2, top_k=5, seed=3, logprobs=4),
        SamplingParams(temperature=0.5, top_p=0.7, min_p=0.1, seed=4, logprobs=0),
    ]
    step = step_of(*[Chunk(random_tokens(checkpoint, 9, i), 0, [i], params=p) for i, p in enumerate(params)])
    logits = np.empty((len(params), checkpoint.spec.vocab), np.float32)
    output = loaded(checkpoint).execute(step, logits)

    assert output.tokens.tolist() == [choose(row, p, position=9) for row, p in zip(logits, params, strict=True)]
    assert output.chosen is not None
    assert output.top_ids is not None
    assert output.top is not None
    expected = [log_probabilities(row) for row in logits]
    assert np.isnan(output.chosen[:2]).all()
    assert output.chosen[2:] == pytest.approx([expected[i][output.tokens[i]] for i in (2, 3)], abs=1e-5)
    best = np.argsort(-logits[2], kind="stable")[:4]
    assert output.top_ids[2].tolist() == best.tolist()
    assert output.top[2] == pytest.approx(expected[2][best], abs=1e-5)
    assert (output.top_ids[[0, 1, 3]] == -1).all()


def test_without_log_probabilities_there_are_no_arrays_for_them() -> None:
    output = loaded(tiny_checkpoint()).execute(step_of(Chunk([1], 0, [0])))
    assert (output.chosen, output.top_ids, output.top) == (None, None, None)
    assert output.duration > 0


# Steps that must not be run


GOOD = step_of(Chunk([1, 2, 3], 30, [4, 5]), Chunk([7], 0, [6, -1]))


def changed(name: str, value: Any) -> StepInput:
    return replace(GOOD, **{name: np.array(value, getattr(GOOD, name).dtype)})


@pytest.mark.parametrize(
    ("step", "complaint"),
    [
        (changed("tokens", [1, 2, 100, 7]), r"tokens\[2\] is 100"),
        (changed("tokens", [1, -2, 3, 7]), r"tokens\[1\] is -2"),
        (changed("tokens", [1, 2, 3]), "positions must be a C-contiguous array of int32 with shape"),
        (changed("positions", [30, 31, 33, 0]), r"positions\[2\] is 33, but its sequence is at 32"),
        (changed("positions", [-1, 0, 1, 0]), r"positions\[0\] is -1"),
        (changed("positions", [2**31 - 1, 31, 32, 0]), r"positions\[0\] is 2147483647"),
        (changed("positions", [62, 63, 64, 0]), r"positions\[0\] is 62"),
        (changed("starts", [1, 3, 4]), r"starts\[0\] is 1"),
        (changed("starts", [0, 3, 3]), r"starts\[2\] is 3, but there are 4 tokens"),
        (changed("starts", [0, 5, 4]), r"starts\[1\] is 5"),
        (changed("starts", [0, -1, 4]), r"starts\[1\] is -1"),
        (changed("starts", [0, 4]), "starts must be"),
        (changed("block_tables", [[4, 5], [-1, -1]]), r"block_tables\[1\] is -1 for block 0"),
        (changed("block_tables", [[64, 5], [6, -1]]), r"block_tables\[0\] is 64 for block 0"),
        (changed("block_tables", [[4, 6], [6, -1]]), "KV block 6 is written twice"),
        (changed("block_tables", [4, 5]), "block_tables must be"),
        (changed("logit_rows", [2, 4]), r"logit_rows\[1\] is 4"),
        (changed("logit_rows", [3, 2]), r"logit_rows\[1\] is 2"),
        (changed("logit_rows", [2]), "temperature must be"),
        (replace(GOOD, tokens=GOOD.tokens.astype(np.int64)), "tokens must be"),
        (replace(GOOD, positions=np.repeat(GOOD.positions, 2)[::2]), "positions must be"),
        (replace(GOOD, sampling=replace(GOOD.sampling, top_p=np.array([1, np.nan], np.float32))), "logit row 1"),
        (replace(GOOD, sampling=replace(GOOD.sampling, temperature=np.array([-1, 0], np.float32))), "logit row 0"),
    ],
)
def test_a_bad_step_is_refused_and_nothing_of_it_computed(step: StepInput, complaint: str) -> None:
    checkpoint = tiny_checkpoint()
    runtime, untouched = loaded(checkpoint), loaded(checkpoint)
    for each in (runtime, untouched):
        each.execute(step_of(Chunk(list(range(30)), 0, [4], draw=[])))
    with pytest.raises(ValueError, match=complaint):
        runtime.execute(step)
    logits = np.empty((2, 2, checkpoint.spec.vocab), np.float32)
    runtime.execute(GOOD, logits[0])
    untouched.execute(GOOD, logits[1])
    assert np.array_equal(logits[0], logits[1])


@pytest.mark.parametrize("runtime", [CpuRuntime, ReferenceRuntime])
def test_a_sequence_without_tokens_changes_nothing(runtime: type[Runtime]) -> None:
    checkpoint = tiny_checkpoint()
    tables = np.array([[-1, -1], [4, 5], [-1, -1], [6, -1], [-1, -1]], np.int32)
    beside = replace(GOOD, starts=np.array([0, 0, 3, 3, 4, 4], np.int32), block_tables=tables)
    logits = np.empty((2, 2, checkpoint.spec.vocab), np.float32)
    for step, scored in zip((GOOD, beside), logits, strict=True):
        each = loaded(checkpoint, runtime())
        each.execute(step_of(Chunk(list(range(30)), 0, [4], draw=[])))
        each.execute(step, scored)
    assert np.array_equal(logits[0], logits[1])


def test_scores_need_an_array_of_their_size() -> None:
    with pytest.raises(ValueError, match=r"logits must be a C-contiguous array of float32 with shape \(2, 100\)"):
        loaded(tiny_checkpoint()).execute(GOOD, np.empty((2, 99), np.float32))


def test_a_step_before_the_cache_is_refused() -> None:
    runtime = CpuRuntime(threads=1)
    runtime.load(tiny_checkpoint())
    with pytest.raises(RuntimeError, match="allocate the KV cache"):
        runtime.execute(GOOD)
    runtime.allocate(8)
    with pytest.raises(ValueError, match="allocated already"):
        runtime.allocate(8)


# Loading and threads


def test_reports_its_memory_and_what_it_computes_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHTWELL_CPU_ISA", "portable")
    checkpoint = tiny_checkpoint(format=Format.Q8_0)
    report = CpuRuntime(threads=3).load(checkpoint)
    assert report.details == {
        "instruction set": "portable",
        "threads": "3",
        "activations": "int8",
        "KV cache type": "f16",
    }
    matrices = [t for t in checkpoint.tensors.values() if len(t.shape) == 2]
    assert report.weight_bytes >= sum(t.rows * t.columns for t in matrices)
    assert report.workspace_bytes > 512 * 4 * (checkpoint.spec.width + checkpoint.spec.ffn_width)


def test_its_memory_is_enough_for_a_step_that_scores_every_token() -> None:
    """As steps do that score a prompt, or check guesses."""
    checkpoint, runtime = tiny_checkpoint(format=Format.Q8_0), CpuRuntime(threads=1, max_step_tokens=300)
    reported = runtime.load(checkpoint).workspace_bytes
    one_row = runtime._plan.workspace_bytes(300, 1, checkpoint.spec.context_tokens)
    scores_of_chunk = 64 * 4 * checkpoint.spec.vocab
    assert reported >= one_row + 299 * checkpoint.spec.width + scores_of_chunk - 4 * checkpoint.spec.vocab


@each_kv_dtype
def test_a_block_takes_what_the_plan_of_the_memory_reckons_with(kv_cache_dtype: KVCacheDtype) -> None:
    checkpoint = tiny_checkpoint()
    report = CpuRuntime(threads=1, kv_cache_dtype=kv_cache_dtype).load(checkpoint)
    assert report.kv_bytes_per_block == checkpoint.spec.kv_bytes_per_token(kv_cache_dtype) * 32


def test_says_where_the_time_of_its_steps_went() -> None:
    runtime = CpuRuntime(threads=2)
    runtime.load(tiny_checkpoint())
    runtime.allocate(BLOCKS)
    assert set(runtime.profile().values()) == {0}
    duration = runtime.execute(GOOD).duration
    assert set(runtime.profile()) == {"rows", "qkv", "attention", "linear", "gated", "logits"}
    assert 0 < sum(runtime.profile().values()) <= duration


def test_a_tied_table_is_packed_once() -> None:
    tied, separate = (CpuRuntime(threads=1).load(tiny_checkpoint(tied=tied)).weight_bytes for tied in (True, False))
    assert separate > tied


def test_an_instruction_set_that_cannot_run_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHTWELL_CPU_ISA", "mmx")
    with pytest.raises(StartupError, match=r"LIGHTWELL_CPU_ISA is mmx, but this machine can run: .*portable"):
        CpuRuntime()


@pytest.mark.parametrize("count", [0, -1, 5000])
def test_a_senseless_number_of_threads_is_refused(count: int) -> None:
    with pytest.raises(StartupError, match="it takes 1 to 1024"):
        CpuRuntime(threads=count)


def test_a_head_that_does_not_divide_is_refused() -> None:
    with pytest.raises(CheckpointError, match="multiples of 16 dimensions"):
        CpuRuntime(threads=1).load(tiny_checkpoint(head_dim=24))


def test_threads_respect_affinity_and_siblings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for cpu, siblings in enumerate(["0-1", "0-1", "2-3", "2-3"]):
        (tmp_path / f"cpu{cpu}/topology").mkdir(parents=True)
        (tmp_path / f"cpu{cpu}/topology/thread_siblings_list").write_text(siblings + "\n")
    monkeypatch.setattr(threads, "_CPUS", tmp_path)
    monkeypatch.setattr(threads, "_OWN_GROUP", tmp_path / "none")
    for allowed, cores in (({0, 1, 2, 3}, 2), ({0, 1}, 1), ({1, 2}, 2)):
        monkeypatch.setattr("os.sched_getaffinity", lambda pid, allowed=allowed: allowed)
        assert threads.default_threads() == cores


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"box/cpu.max": "250000 100000\n"}, 2),
        ({"box/cpu.max": "max 100000\n", "cpu.max": "100000 100000\n"}, 1),
        ({"box/cpu.max": "50000 100000\n"}, 1),
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
        ({}, 8),
    ],
)
def test_threads_respect_the_cpu_quota(
    files: dict[str, str], expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "own").write_text("1:cpu:/\n0::/box\n")
    monkeypatch.setattr(threads, "_CPUS", tmp_path / "none")
    monkeypatch.setattr(threads, "_CGROUPS", tmp_path)
    monkeypatch.setattr(threads, "_OWN_GROUP", tmp_path / "own")
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)))
    assert threads.default_threads() == expected


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity masks")
def test_pinned_threads_stay_on_cores_of_their_own() -> None:
    cores = threads.core_cpus()
    before = set(os.listdir("/proc/self/task"))
    seen: list[set[int]] = []

    def load() -> None:  # in a thread of its own, which is pinned too and ends with the test
        runtime = CpuRuntime(threads=len(cores), pin_threads=True)
        runtime.load(tiny_checkpoint())
        tasks = set(os.listdir("/proc/self/task")) - before
        seen.extend(os.sched_getaffinity(int(task)) for task in tasks)

    loader = threading.Thread(target=load)
    loader.start()
    loader.join()
    assert sorted(cpu for cpus in seen if len(cpus) == 1 for cpu in cpus) == cores


def test_more_pinned_threads_than_cores_are_refused() -> None:
    with pytest.raises(StartupError, match="cannot be pinned to the"):
        CpuRuntime(threads=len(threads.core_cpus()) + 1, pin_threads=True)


# Real models

TEXT = (
    "A light well is a shaft that brings daylight into the inner rooms of a house. In old towns, where houses stand "
    "wall to wall, the rooms at the back would be dark without one. Its walls are painted white, so that even in "
    "winter some of the sky reaches the kitchen on the ground floor. Children learn the hour from the stripe of sun "
    "that climbs down the plaster in the morning and up again after noon.\n"
    "def area(width, depth):\n    return width * depth\n"
    "In 1911 the city made a rule: no room may be farther than 6.5 m from a window. 日光は部屋を明るくする。"
)


def real(path: Path) -> tuple[Checkpoint, list[int]]:
    checkpoint = open_checkpoint(path)
    return checkpoint, load_tokenizer(checkpoint).encode_prompt(TEXT)


def mean_divergence(actual: Floats, expected: Floats) -> float:
    """Mean Kullback-Leibler divergence of the rows' distributions, in nats."""
    p, q = (np.array([log_probabilities(row) for row in scores]) for scores in (expected, actual))
    return float((np.exp(p) * (p - q)).sum(axis=1).mean())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "relative"),
    [("smollm2", 1e-3), ("gemma3", 4e-3)],  # packing rounds the product of two scales, in K formats, to half precision
)
def test_a_real_model_equals_the_reference(model: str, relative: float, request: pytest.FixtureRequest) -> None:
    checkpoint, tokens = real(request.getfixturevalue(model))
    expected = every_row(loaded(checkpoint, RoundingReference()), checkpoint, tokens)
    exact = every_row(loaded(checkpoint, activations="float32"), checkpoint, tokens)
    assert_close(exact, expected, relative)
    int8 = every_row(loaded(checkpoint), checkpoint, tokens)
    assert mean_divergence(int8, expected) <= 0.006
    assert (int8.argmax(axis=1) == expected.argmax(axis=1)).mean() >= 0.9


@pytest.mark.slow
@each_kv_dtype
def test_a_real_model_gives_the_same_bits_in_any_batch(kv_cache_dtype: KVCacheDtype, smollm2: Path) -> None:
    checkpoint, tokens = real(smollm2)
    runtime = loaded(checkpoint, kv_cache_dtype=kv_cache_dtype)
    whole = every_row(runtime, checkpoint, tokens)
    count = len(tokens)
    for size in (5, 16, 64):
        assert np.array_equal(every_row(runtime, checkpoint, tokens, cuts=range(size, count, size)), whole)
    cut = count - 20
    every_row(runtime, checkpoint, tokens[:cut], table=[9, 3, 7, 1, 8, 2, 0, 5])
    for position in range(cut, count):
        own = Chunk([tokens[position]], position, [9, 3, 7, 1, 8, 2, 0, 5])
        batch = [*strangers(checkpoint, 7, first_block=20), own]
        assert np.array_equal(scores(runtime, checkpoint, *batch)[-1], whole[position])


@pytest.mark.slow
def test_a_real_model_writes_sense(smollm2: Path) -> None:
    checkpoint = open_checkpoint(smollm2)
    tokenizer = load_tokenizer(checkpoint)
    prompt = tokenizer.encode_prompt("The capital of France is")
    assert tokenizer.decode(generate(loaded(checkpoint), prompt, 1)).strip() == "Paris"
