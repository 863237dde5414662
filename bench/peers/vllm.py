"""vLLM's CPU build as a subject: its server on the model as a Hugging Face folder in bf16."""

from collections.abc import Mapping
from pathlib import Path

from bench.peers.hf_folder import write_hf_folder
from bench.peers.sessions import ServerSession
from bench.peers.workloads import Setting
from lightwell.checkpoints.catalog import pull

_CACHE_GIB = 4


class VllmSession(ServerSession):
    def __init__(self, setting: Setting, log: Path, venv: Path) -> None:
        super().__init__(setting, log)
        self.venv = venv
        file = pull(setting.model)
        self.folder = venv / f"{file.stem}-bf16"
        if not (self.folder / "model.safetensors").exists():
            write_hf_folder(file, self.folder)

    def command(self, port: int, *, lean: bool) -> list[str]:
        return [
            *(str(self.venv / "bin" / "vllm"), "serve", str(self.folder), "--served-model-name", self.model),
            *("--dtype", "bfloat16", "--max-model-len", "4096", "--max-num-seqs", "64"),
            *("--host", "127.0.0.1", "--port", str(port)),
        ]

    def environment(self) -> Mapping[str, str]:
        return {
            "PYTHONPATH": "",  # its own packages alone
            "VLLM_CPU_KVCACHE_SPACE": str(_CACHE_GIB),
            "VLLM_CPU_OMP_THREADS_BIND": f"0-{self.setting.threads - 1}",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            "LD_PRELOAD": ":".join(map(str, preloaded(self.venv))),
        }


def preloaded(venv: Path) -> list[Path]:
    """The libraries that its manual wants loaded first: an allocator, where this machine has it, and OpenMP."""
    allocators = [
        file for folder in (Path("/usr/lib"), Path("/lib")) for file in folder.glob("*/libtcmalloc_minimal.so.4")
    ]
    return [*allocators[:1], *venv.glob("lib/libiomp5.so")]
