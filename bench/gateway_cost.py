"""What the gateway costs: the same requests over HTTP, and given straight to an engine's client, in turn.

    python -m bench.gateway_cost [--model smollm2] [--streams 16] [--requests 64] [--rounds 5]

Both have an engine in a process of its own, on the same cores; only one is at work at a time. The exit code is 1 where
HTTP, the API, limits, the ledger and detokenizing cost more than 5 % of the tokens a second. The client over HTTP
shares the cores: it reads bytes, and looks at them when all is over (bench/load/client.py).
"""

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

from bench.load.client import Read, read_stream
from lightwell.checkpoints import open_checkpoint
from lightwell.checkpoints.catalog import pull
from lightwell.cli.bench_serve import started_server
from lightwell.cli.load import Load
from lightwell.engine.request import Request
from lightwell.events import Sampled
from lightwell.host.memory import plan_kv
from lightwell.host.messages import EngineConfig
from lightwell.host.process import spawn_worker
from lightwell.host.supervisor import Supervisor
from lightwell.sampling.params import SamplingParams
from lightwell.text import load_tokenizer

_MOST_COST = 0.05
_PROMPT_TOKENS, _OUTPUT_TOKENS = 200, 128


class Direct:
    """An engine, and requests from prompts as the gateway would make them."""

    def __init__(self, model: str) -> None:
        path = pull(model)
        checkpoint = open_checkpoint(path)
        context = checkpoint.spec.context_tokens
        plan = plan_kv(checkpoint, context, None, "f16")
        config = EngineConfig(model=str(path), name=model, kv_blocks=plan.blocks, context_tokens=context)
        self.engine = Supervisor(config, spawn_worker(), 300.0)
        self._tokenizer = load_tokenizer(checkpoint)

    async def tokens_per_second(self, load: Load) -> float:
        prompts = [self._tokenizer.encode_prompt(prompt) for prompt in load.prompts()]
        waiting = iter([self._request(number, tokens, load) for number, tokens in enumerate(prompts)])
        begin = time.perf_counter()
        made = sum(await asyncio.gather(*(self._drain(waiting) for _ in range(load.streams))))
        return made / (time.perf_counter() - begin)

    async def _drain(self, waiting: Iterator[Request]) -> int:
        made = 0
        for request in waiting:
            async for event in self.engine.stream(request):
                made += isinstance(event, Sampled)
        return made

    def _request(self, number: int, tokens: list[int], load: Load) -> Request:
        greedy = SamplingParams(temperature=0)
        return Request(f"{load.seed}-{number}", tokens, greedy, max_tokens=load.output_tokens)


async def over_http(port: int, model: str, load: Load) -> float:
    asked = {"model": model, "max_tokens": load.output_tokens, "temperature": 0, "ignore_eos": True, "stream": True}
    bodies = iter([asked | {"prompt": prompt} for prompt in load.prompts()])
    begin = time.perf_counter()
    reads = await asyncio.gather(*(_read_all(port, bodies) for _ in range(load.streams)))
    seconds = time.perf_counter() - begin
    if not all(read.done for each in reads for read in each):
        raise SystemExit("a stream was broken off")
    return load.requests * load.output_tokens / seconds


async def _read_all(port: int, bodies: Iterator[dict[str, Any]]) -> list[Read]:
    return [await read_stream(port, body) for body in bodies]


async def compare(model: str, load: Load, rounds: int) -> list[tuple[float, float]]:
    """Tokens per second (over HTTP, direct) of each round, the prompts of each being new to both."""
    direct = Direct(model)
    found: list[tuple[float, float]] = []
    with started_server(model, None) as address:
        await direct.engine.start()
        for number in range(rounds + 1):
            asked = Load(load.streams, load.requests, load.prompt_tokens, load.output_tokens, seed=100 + number)
            pair = await over_http(int(address.rpartition(":")[2]), model, asked), await direct.tokens_per_second(asked)
            if number:  # the first warms up
                found.append(pair)
                print(f"over HTTP {pair[0]:.0f}, direct {pair[1]:.0f} tokens/s: {pair[0] / pair[1]:.3f}", flush=True)
        await direct.engine.stop()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.gateway_cost", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds; one more before them warms up")
    options = parser.parse_args()
    load = Load(options.streams, options.requests, _PROMPT_TOKENS, _OUTPUT_TOKENS)
    found = asyncio.run(compare(options.model, load, options.rounds))
    ratio = statistics.median(over / direct for over, direct in found)
    print(f"the gateway costs {1 - ratio:.1%} of the tokens a second (at most {_MOST_COST:.0%})")
    return int(1 - ratio > _MOST_COST)


if __name__ == "__main__":
    sys.exit(main())
