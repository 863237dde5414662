"""A short probe of a runtime before its first request, so that the cost model does not start from nothing."""

import numpy as np

from lightwell.engine.clocks import Clock
from lightwell.engine.cost_model import CostModel
from lightwell.engine.policies import SchedulerLimits
from lightwell.runtimes.base import Runtime, StepInput, sampling_rows
from lightwell.sampling.params import SamplingParams
from lightwell.units import Tokens

_TOKEN = 0  # which token is read does not change the work
_FAR: Tokens = 1024  # a position far enough in that reading the KV cache is felt
# Sequences, where they start, and the tokens of each: a decoding step alone and of several, and small prefill chunks.
_STEPS = ((1, 31, 1), (8, 31, 1), (1, 0, 32), (1, 0, 128), (1, _FAR, 32), (4, _FAR, 1))
_ROUNDS = 2


def probe(runtime: Runtime, limits: SchedulerLimits, clock: Clock, cost: CostModel) -> None:
    """Run a few small steps and let ``cost`` learn from them. What they write into the KV cache nobody reads: a block
    is written again before it becomes part of a sequence."""
    steps = [step for step in _STEPS if _fits(*step, limits)]
    for round in range(1 + _ROUNDS):
        for sequences, start, tokens in steps:
            step = _step(sequences, start, tokens, limits.block_tokens)
            begin = clock()
            runtime.execute(step)
            if round > 0:  # the first touches memory that later ones find warm
                cost.learn([(start, tokens)] * sequences, clock() - begin)


def _fits(sequences: int, start: Tokens, tokens: Tokens, limits: SchedulerLimits) -> bool:
    end = start + tokens
    return (
        sequences <= limits.max_sequences
        and sequences * tokens <= limits.max_step_tokens
        and end <= limits.context_tokens
        and sequences * -(-end // limits.block_tokens) <= limits.blocks
    )


def _step(sequences: int, start: Tokens, tokens: Tokens, block_tokens: Tokens) -> StepInput:
    """One greedy token for each sequence; each has blocks of its own."""
    end, rows = start + tokens, sequences * tokens
    blocks = -(-end // block_tokens)
    return StepInput(
        tokens=np.full(rows, _TOKEN, np.int32),
        positions=np.tile(np.arange(start, end, dtype=np.int32), sequences),
        starts=np.arange(0, rows + 1, tokens, dtype=np.int32),
        block_tables=np.arange(sequences * blocks, dtype=np.int32).reshape(sequences, blocks),
        logit_rows=np.arange(tokens - 1, rows, tokens, dtype=np.int32),
        sampling=sampling_rows([SamplingParams(temperature=0)] * sequences, [end] * sequences),
    )
