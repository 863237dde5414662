"""PolicyOptions: what an operator chooses of the scheduler's policies, and the hooks that follow from it."""

from dataclasses import replace
from functools import partial
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from lightwell.engine.allocation import longest_possible, to_nobody, unless_begun, whole_promise
from lightwell.engine.batching import static
from lightwell.engine.cost_model import CostModel
from lightwell.engine.dial import InTime, cap_of_long, no_passing_of_the_late, within_itl
from lightwell.engine.policies import Policies, no_cap, splitting
from lightwell.engine.repetition import stopping_repetition
from lightwell.units import Seconds, Tokens


class PolicyOptions(msgspec.Struct, frozen=True, array_like=True):
    """docs/scheduling.md explains each. The default is what suits most."""

    when_full: Literal["queue", "preempt", "reject"] = "preempt"
    batching: Literal["continuous", "static"] = "continuous"
    kv_allocation: Literal["paged", "reserved"] = "paged"
    target_itl: Annotated[Seconds, Meta(gt=0)] | None = None
    target_ttft: Annotated[Seconds, Meta(gt=0)] | None = None
    long_prefill_threshold: Annotated[Tokens, Meta(ge=1)] | None = None
    stop_repetition: bool = False

    @property
    def steered(self) -> bool:
        """Whether a cost model is needed."""
        return self.target_itl is not None or self.target_ttft is not None


def make_policies(options: PolicyOptions, cost: CostModel | None = None) -> Policies:
    """``cost``: a model that has learned already; by default one that knows nothing yet."""
    policies = _memory(Policies(), options)
    if options.batching == "static":
        policies = replace(policies, joins=static, yields=to_nobody)
    if options.stop_repetition:
        policies = replace(policies, ends=stopping_repetition(policies.ends))
    return _steering(policies, options, cost or CostModel())


def _memory(policies: Policies, options: PolicyOptions) -> Policies:
    if options.when_full != "preempt":
        policies = replace(policies, promise=longest_possible, admit=whole_promise, yields=to_nobody)
    if options.when_full == "reject":
        policies = replace(policies, refuses=unless_begun)
    if options.kv_allocation == "reserved":
        policies = replace(policies, promise=longest_possible, admit=whole_promise, reserve=longest_possible)
    return policies


def _steering(policies: Policies, options: PolicyOptions, cost: CostModel) -> Policies:
    itl, ttft, threshold = options.target_itl, options.target_ttft, options.long_prefill_threshold
    cap = no_cap if threshold is None else partial(cap_of_long, threshold)
    policies = replace(policies, split=splitting(cap=cap))
    if ttft is not None:
        in_time = InTime(ttft, cost)
        split = splitting(in_time.key, cap, in_time.share_of_oldest)
        policies = replace(policies, split=split, may_pass=no_passing_of_the_late(ttft))
    if itl is not None:
        policies = replace(policies, budget=within_itl(itl, cost, ttft))
    return replace(policies, learn=cost.learn) if options.steered else policies
