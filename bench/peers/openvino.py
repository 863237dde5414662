"""OpenVINO GenAI as a subject: its batching pipeline on the GGUF file, in a process of its own, fed token ids.

It has no server: its figures are without HTTP, JSON and detokenizing, which the others' include.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

from bench.peers import processes
from bench.peers.sessions import Session
from bench.peers.workloads import Setting
from lightwell.checkpoints import open_checkpoint
from lightwell.checkpoints.catalog import pull
from lightwell.cli.load import Answer, Load
from lightwell.errors import StartupError
from lightwell.text import load_tokenizer

_CACHE_GIB = 4
_WORKER = Path(__file__).with_name("openvino_worker.py")


class OpenVinoSession(Session):
    def __init__(self, setting: Setting, log: Path, venv: Path) -> None:
        super().__init__(setting, log)
        self.python = venv / "bin" / "python"
        self.file = pull(setting.model)
        self.tokenizer = load_tokenizer(open_checkpoint(self.file))

    def open(self, *, lean: bool = False) -> None:
        words = [str(self.file), str(self.setting.threads), str(_CACHE_GIB)]
        command = [str(self.python), "-I", str(_WORKER), *words]  # isolated: this file is called openvino as well
        self.process = processes.start(command, {}, self.log, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._read()

    def send(self, load: Load) -> list[Answer]:
        assert self.process is not None
        assert self.process.stdin is not None
        prompts = [self.tokenizer.encode(prompt, special=False) for prompt in load.prompts()]
        request = {"prompts": prompts, "streams": load.streams, "output_tokens": load.output_tokens}
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()
        return [Answer(**answer) for answer in self._read()["answers"]]

    def _read(self) -> dict[str, Any]:
        assert self.process is not None
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise StartupError("its process ended")
        told: dict[str, Any] = json.loads(line)
        return told
