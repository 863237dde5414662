from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightwell.checkpoints.checkpoint import Checkpoint
from lightwell.checkpoints.spec import Rope
from lightwell.checkpoints.tensor import Format
from lightwell.runtimes.reference import ReferenceRuntime
from lightwell.sampling.params import SamplingParams
from tests.runtimes.naive import Naive
from tests.steps import Chunk, blocks_for, generate, step_of
from tests.tiny import KINDS, tiny_checkpoint, tiny_shapes

Floats = npt.NDArray[np.float32]


def loaded(checkpoint: Checkpoint, blocks: int = 16) -> ReferenceRuntime:
    runtime = ReferenceRuntime()
    runtime.load(checkpoint)
    runtime.allocate(blocks)
    return runtime


def scores(runtime: ReferenceRuntime, *chunks: Chunk) -> Floats:
    step = step_of(*chunks)
    logits = np.empty((len(step.logit_rows), runtime._spec.vocab), np.float32)
    runtime.execute(step, logits)
    return logits


def random_tokens(checkpoint: Checkpoint, count: int, seed: int = 1) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, checkpoint.spec.vocab, count)]


def prefill(checkpoint: Checkpoint, tokens: list[int]) -> Floats:
    """Scores after every token, computed in one chunk."""
    table = list(range(blocks_for(len(tokens))))
    return scores(loaded(checkpoint), Chunk(tokens, 0, table, draw=range(len(tokens))))


def assert_close(actual: Floats, expected: npt.NDArray[Any]) -> None:
    assert np.abs(actual - expected).max() <= 1e-4 * np.abs(expected).max()


@settings(max_examples=25, deadline=None)
@given(shape=tiny_shapes(), seed=st.integers(0, 1000), count=st.integers(1, 40))
def test_equals_the_naive_definition(shape: dict[str, Any], seed: int, count: int) -> None:
    checkpoint = tiny_checkpoint(seed, **shape)
    tokens = random_tokens(checkpoint, count)
    assert_close(prefill(checkpoint, tokens), Naive(checkpoint).logits(tokens))


@pytest.mark.parametrize("interleaved", [True, False])
def test_rotates_only_the_first_dimensions_where_rope_covers_a_part_of_the_head(interleaved: bool) -> None:
    checkpoint = tiny_checkpoint(rope=Rope(theta=10_000, dims=16, interleaved=interleaved), head_dim=32)
    tokens = random_tokens(checkpoint, 20)
    assert_close(prefill(checkpoint, tokens), Naive(checkpoint).logits(tokens))


@pytest.mark.parametrize("format", [Format.F16, Format.BF16, Format.Q4_1, Format.Q8_0, Format.Q6_K, Format.Q4_K])
def test_reads_every_kind_of_format(format: Format) -> None:
    checkpoint = tiny_checkpoint(format=format, width=256, ffn_width=256, heads=4, head_dim=64)
    tokens = random_tokens(checkpoint, 9)
    assert_close(prefill(checkpoint, tokens), Naive(checkpoint).logits(tokens))


@settings(max_examples=20, deadline=None)
@given(data=st.data(), shape=tiny_shapes())
def test_chunks_and_block_tables_do_not_matter(data: st.DataObject, shape: dict[str, Any]) -> None:
    checkpoint = tiny_checkpoint(3, **shape)
    tokens = random_tokens(checkpoint, data.draw(st.integers(2, 100)))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(tokens) - 1), max_size=5)))
    table = data.draw(st.permutations(range(16)))[: blocks_for(len(tokens))]
    runtime = loaded(checkpoint)
    parts = [
        scores(runtime, Chunk(tokens[a:b], a, table, draw=range(b - a)))
        for a, b in zip([0, *cuts], [*cuts, len(tokens)], strict=True)
    ]
    assert_close(np.concatenate(parts), prefill(checkpoint, tokens))


@pytest.mark.parametrize("family", KINDS)
def test_sequences_of_a_step_do_not_see_each_other(family: Any) -> None:
    checkpoint = tiny_checkpoint(family=family, window=20)
    runtime = loaded(checkpoint)
    first, second, third = (random_tokens(checkpoint, n, seed=n) for n in (70, 33, 5))
    tables = [9, 2, 4], [3, 0], [7]
    scores(runtime, Chunk(first[:69], 0, tables[0]), Chunk(second[:10], 0, tables[1]))
    mixed = scores(
        runtime, Chunk(first[69:], 69, tables[0]), Chunk(second[10:], 10, tables[1]), Chunk(third, 0, tables[2])
    )
    alone = [prefill(checkpoint, tokens)[-1] for tokens in (first, second, third)]
    assert_close(mixed, np.array(alone))


def test_only_the_rows_that_are_asked_for_get_a_token() -> None:
    checkpoint = tiny_checkpoint()
    tokens = random_tokens(checkpoint, 10)
    step = step_of(Chunk(tokens, 0, [0], draw=[2, 7]), Chunk(tokens, 0, [1], draw=[]))
    output = loaded(checkpoint).execute(step)
    expected = prefill(checkpoint, tokens)[[2, 7]].argmax(axis=1)
    assert output.tokens.tolist() == expected.tolist()
    assert (output.chosen, output.top_ids, output.top) == (None, None, None)


def test_logprobs_have_a_column_for_the_largest_number_asked_for() -> None:
    checkpoint = tiny_checkpoint()
    tokens = random_tokens(checkpoint, 10)
    asks = [SamplingParams(temperature=1, seed=5, logprobs=n) for n in (None, 3, 0)]
    chunks = [Chunk(tokens, 0, [block], params=params) for block, params in enumerate(asks)]
    output = loaded(checkpoint).execute(step_of(*chunks))
    row = prefill(checkpoint, tokens)[-1].astype(np.float64)
    logprobs = row - np.log(np.exp(row).sum())
    assert output.top_ids is not None
    assert output.top is not None
    assert output.chosen is not None
    assert output.top_ids.shape == (3, 3)
    assert output.top_ids[1].tolist() == np.argsort(-row)[:3].tolist()
    assert np.allclose(output.top, logprobs[output.top_ids], atol=1e-4)
    assert np.allclose(output.chosen, logprobs[output.tokens], atol=1e-4)


def test_a_seeded_continuation_is_the_same_in_any_chunks() -> None:
    checkpoint = tiny_checkpoint(7)
    prompt = random_tokens(checkpoint, 50)
    params = SamplingParams(temperature=0.8, top_k=20, seed=11)
    texts = [generate(loaded(checkpoint), prompt, 20, params=params, chunk_tokens=n) for n in (1, 7, 1000)]
    assert texts[0] == texts[1] == texts[2]
    assert texts[0] != generate(loaded(checkpoint), prompt, 20, params=SamplingParams(temperature=0.8, top_k=20))


@pytest.mark.parametrize("table", [[0], [0, -1], [0, 99]])
def test_a_block_table_that_does_not_hold_the_sequence_is_refused(table: list[int]) -> None:
    checkpoint = tiny_checkpoint()
    with pytest.raises(ValueError, match="block table"):
        loaded(checkpoint).execute(step_of(Chunk(random_tokens(checkpoint, 40), 0, table)))


def test_reports_what_it_takes() -> None:
    checkpoint = tiny_checkpoint(layers=3, kv_heads=2, head_dim=32)
    report = ReferenceRuntime().load(checkpoint)
    assert report.kv_bytes_per_block == 32 * 3 * 2 * 2 * 32 * 4
    assert report.weight_bytes == 4 * sum(int(np.prod(tensor.shape)) for tensor in checkpoint.tensors.values())
