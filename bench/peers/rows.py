"""The rows of the comparison: what is measured of whom, and what is demanded. Every line of the table is from here.

A demand is a ratio by which Lightwell is better (of rates ours over theirs, of times and bytes theirs over ours), or a
bound on Lightwell's own figure.
"""

from dataclasses import dataclass

from bench.peers.workloads import Decode, Memory, Prefill, Setting, Start, Workload
from lightwell.cli.load import Load

LIGHTWELL, UNCACHED, INT8_KV = "Lightwell", "Lightwell without prefix cache", "Lightwell with int8 KV"
LLAMA, OPENVINO, VLLM = "llama.cpp", "OpenVINO", "vLLM"
MACHINE = "machine"  # its limit for this work
PEERS = (LLAMA, OPENVINO, VLLM)

RATE = "tokens_per_second"
PRODUCTS = "product_operations_per_second"  # multiplications and additions in matrix products, over the time in them
TTFT_P50, TTFT_P99 = "ttft_p50_seconds", "ttft_p99_seconds"
FIRST_TOKEN = "first_token_seconds"
RESIDENT, GROWTH = "resident_bytes", "growth"


@dataclass(frozen=True)
class Demand:
    """``at_least``: the ratio of ``subject`` to the best of ``against``. ``at_most``: a bound on its own figure."""

    metric: str
    against: tuple[str, ...] = ()
    at_least: float | None = None
    at_most: float | None = None
    subject: str = LIGHTWELL


@dataclass(frozen=True)
class Row:
    """``once``: one round and no warm-up, for what takes long and starts anew anyway."""

    name: str
    says: str
    workload: Workload
    setting: Setting
    subjects: tuple[str, ...]  # beside Lightwell
    demands: tuple[Demand, ...]
    once: bool = False


def lower_is_better(metric: str) -> bool:
    return metric.endswith(("_seconds", "_bytes"))


def peer_rows(threads: int) -> list[Row]:
    """Against the other servers."""
    return [*_single_stream(threads), *_served(threads), *_process(threads), *_gemma(threads), *_confined(threads)]


def limit_rows(threads: int) -> list[Row]:
    """Against the machine's own limits."""
    setting = Setting(threads=threads)

    def decode(name: str, says: str, workload: Decode, share: float) -> Row:
        return Row(name, says, workload, setting, (MACHINE,), (Demand(RATE, (MACHINE,), share),))

    return [
        decode("limit-decode", "decode, one stream", Decode(), 0.85),
        Row(
            "limit-prefill-512",
            "matrix products of a prefill of 512 tokens",
            Prefill(512),
            setting,
            (MACHINE,),
            (Demand(PRODUCTS, (MACHINE,), 0.6),),
        ),
        decode("limit-batch-64", "decode, 64 streams at 512 tokens", Decode(16, batch=64, context=512), 0.8),
        decode("limit-4000", "decode, one stream at 4,000 tokens", Decode(32, context=4000), 0.8),
        decode("limit-8000", "decode, one stream at 8,000 tokens", Decode(32, context=8000), 0.8),
        Row(
            "int8-kv",
            "decode, 64 streams at 512 tokens: int8 KV cache over 16 bits",
            Decode(16, batch=64, context=512),
            setting,
            (INT8_KV,),
            (Demand(RATE, (LIGHTWELL,), 1.5, subject=INT8_KV),),
        ),
    ]


def _single_stream(threads: int) -> list[Row]:
    setting, subjects = Setting(threads=threads), (*PEERS, MACHINE)
    return [
        Row(
            "decode",
            "decode 256 tokens, one stream",
            Decode(),
            setting,
            subjects,
            (Demand(RATE, (LLAMA,), 2), Demand(RATE, (OPENVINO,), 3)),
        ),
        *(
            Row(
                f"prefill-{tokens}",
                f"read a prompt of {tokens} tokens",
                Prefill(tokens),
                setting,
                subjects,
                (Demand(RATE, (OPENVINO,), 1.25), Demand(RATE, (LLAMA,), llama)),
            )
            for tokens, llama in ((512, 2.8), (2048, 4))
        ),
    ]


def _served(threads: int) -> list[Row]:
    setting = Setting(threads=threads)
    rates = (Demand(RATE, PEERS, 2.5), Demand(RATE, (LLAMA,), 4), Demand(RATE, (VLLM,), 4))
    burst = (Demand(TTFT_P50, PEERS, 2), Demand(TTFT_P99, PEERS, 1))
    return [
        *(
            Row(
                f"served-{streams}",
                f"64 requests of 209 tokens and 128 out, {streams} at once",
                Load(streams, 64, prompt_tokens=209, output_tokens=128),
                setting,
                PEERS,
                (*rates, *burst) if streams == 64 else rates,
            )
            for streams in (4, 16, 64)
        ),
        Row(
            "shared-prefix",
            "64 requests that share 1,485 tokens, 24 of their own and 128 out, 16 at once, warmed",
            Load(16, 64, prompt_tokens=24, output_tokens=128, shared_tokens=1485),
            setting,
            (*PEERS, UNCACHED),
            (Demand(RATE, PEERS, 5), Demand(TTFT_P50, (UNCACHED,), 10)),
        ),
    ]


def _process(threads: int) -> list[Row]:
    setting = Setting(threads=threads)
    return [
        Row("start", "process start to first token", Start(), setting, PEERS, (Demand(FIRST_TOKEN, at_most=0.7),)),
        Row(
            "memory",
            "resident memory at the end of 64 requests, 16 at once",
            Memory(Load(16, 64, prompt_tokens=209, output_tokens=128)),
            setting,
            PEERS,
            (Demand(RESIDENT, at_most=600e6),),
            once=True,
        ),
        Row(
            "memory-10000",
            "resident memory at the end of 10,000 short requests, 16 at once",
            Memory(Load(16, 10_000, prompt_tokens=32, output_tokens=4)),
            setting,
            (),
            (Demand(RESIDENT, at_most=600e6), Demand(GROWTH, at_most=1.02)),
            once=True,
        ),
    ]


def _beside_llama(name: str, says: str, setting: Setting, ratios: tuple[float, float, float]) -> list[Row]:
    workloads: tuple[Workload, ...] = (Decode(), Prefill(512), Load(16, 64, prompt_tokens=209, output_tokens=128))
    kinds = (("decode", "decode"), ("prefill-512", "read 512 tokens"), ("served-16", "16 streams"))
    return [
        Row(f"{name}-{kind}", f"{says}: {what}", workload, setting, (LLAMA,), (Demand(RATE, (LLAMA,), ratio),))
        for (kind, what), workload, ratio in zip(kinds, workloads, ratios, strict=True)
    ]


def _gemma(threads: int) -> list[Row]:
    return _beside_llama("gemma", "Gemma 3 270M Q4_K_M", Setting("gemma3:270m", threads), (1.8, 3, 4))


def _confined(threads: int) -> list[Row]:
    """One thread, and only AVX2 on both sides."""
    return [
        *_beside_llama("one-thread", "one thread", Setting(threads=1), (1, 1, 1)),
        *_beside_llama("avx2", "AVX2 only", Setting(threads=threads, isa="avx2"), (1, 1, 1)),
    ]
