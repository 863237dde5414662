"""A subject in one setting: started when first needed, kept through the rounds, frozen while others are measured."""

import dataclasses
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path

import httpx

from bench.peers import processes
from bench.peers.workloads import (
    Decode,
    Memory,
    Metrics,
    Prefill,
    Setting,
    Start,
    Unavailable,
    Workload,
    as_load,
    rate_of,
    seeded,
    served_metrics,
)
from lightwell.cli.bench_serve import free_port, wait_ready
from lightwell.cli.load import Answer, Load, run_load
from lightwell.errors import StartupError
from lightwell.units import Seconds

START_PATIENCE: Seconds = 300.0
_FIRST_ANSWER = Load(1, 1, prompt_tokens=1, output_tokens=1)
_EARLY_SHARE = 10  # a tenth of the requests is enough for caches to fill


class Session(ABC):
    """What a subject does by itself (``decode``, ``prefill``) may be overridden where it has a better way."""

    def __init__(self, setting: Setting, log: Path) -> None:
        self.setting = setting
        self.log = log
        self.process: subprocess.Popen[bytes] | None = None
        self.broken = ""  # why it can do nothing any more

    def measure(self, workload: Workload, seed: int) -> Metrics:
        """Raises Unavailable where this subject cannot do that here; once its process has failed, for all that follows,
        since some take minutes to fail again."""
        if self.broken:
            raise Unavailable(self.broken)
        try:
            return self._measure(workload, seed)
        except (StartupError, httpx.HTTPError, OSError, ValueError) as error:
            said = f" ({processes.last_words(self.log)})" if self.log.exists() else ""
            self.broken = f"{error or type(error).__name__}{said}"
            self.close()
            raise Unavailable(self.broken) from error

    def _measure(self, workload: Workload, seed: int) -> Metrics:
        match workload:
            case Load():
                return served_metrics(self.answers(seeded(workload, seed)), workload)
            case Decode():
                return self.decode(workload, seed)
            case Prefill():
                return self.prefill(workload, seed)
            case Start():
                return {"first_token_seconds": self.first_token()}
            case Memory():
                return self.memory(workload.load)

    def decode(self, workload: Decode, seed: int) -> Metrics:
        return rate_of(workload, self.answers(as_load(workload, seed))[0])

    def prefill(self, workload: Prefill, seed: int) -> Metrics:
        return rate_of(workload, self.answers(as_load(workload, seed))[0])

    def answers(self, load: Load) -> list[Answer]:
        if self.process is None:
            self.open()
        return self.send(load)

    def first_token(self) -> Seconds:
        """From the start of a new process to its first token."""
        self.close()
        begin = time.perf_counter()
        self.open()
        self.send(_FIRST_ANSWER)
        seconds = time.perf_counter() - begin
        self.close()
        return seconds

    def memory(self, load: Load) -> Metrics:
        """Of a new process: early, and at the end."""
        self.close()
        self.open(lean=True)
        early = max(load.streams, load.requests // _EARLY_SHARE)
        self.send(dataclasses.replace(load, requests=early, seed=1))
        before = self.resident()
        self.send(dataclasses.replace(load, requests=load.requests - early, seed=2))
        after = self.resident()
        self.close()
        return {"resident_bytes": after, "growth": after / before}

    def resident(self) -> int:
        assert self.process is not None, "weighed while it is open"
        return processes.resident_bytes(self.process)

    def freeze(self) -> None:
        if self.process is not None:
            processes.freeze(self.process)

    def thaw(self) -> None:
        if self.process is not None:
            processes.thaw(self.process)

    def close(self) -> None:
        if self.process is not None:
            processes.end(self.process)
            self.process = None

    @abstractmethod
    def open(self, *, lean: bool = False) -> None:
        """Start the process and wait until it answers. ``lean``: as it comes, without a cache sized for the rows."""

    @abstractmethod
    def send(self, load: Load) -> list[Answer]:
        """Run the load against the open process."""


class ServerSession(Session):
    """A server with the OpenAI completions API."""

    model = "bench"  # what its clients call the model

    def open(self, *, lean: bool = False) -> None:
        port = free_port()
        self.address = f"http://127.0.0.1:{port}"
        self.process = processes.start(self.command(port, lean=lean), self.environment(), self.log)
        wait_ready(self.address, self.process, START_PATIENCE)

    def send(self, load: Load) -> list[Answer]:
        return run_load(self.address, self.model, load)

    @abstractmethod
    def command(self, port: int, *, lean: bool) -> list[str]: ...

    def environment(self) -> Mapping[str, str]:
        return {}
