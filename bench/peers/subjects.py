"""Which session stands for which name of the table."""

from pathlib import Path

from bench.peers.install import environment_for, prepare
from bench.peers.lightwell import Int8KvSession, LightwellSession, MachineSession
from bench.peers.llama_cpp import LlamaSession
from bench.peers.openvino import OpenVinoSession
from bench.peers.rounds import Opener
from bench.peers.rows import INT8_KV, LIGHTWELL, LLAMA, MACHINE, OPENVINO, UNCACHED, VLLM
from bench.peers.sessions import Session
from bench.peers.vllm import VllmSession
from bench.peers.workloads import Setting

_OURS: dict[str, tuple[type[LightwellSession], tuple[str, ...]]] = {
    LIGHTWELL: (LightwellSession, ()),
    UNCACHED: (LightwellSession, ("--no-enable-prefix-caching",)),
    INT8_KV: (Int8KvSession, ("--kv-cache-dtype", "int8")),
    MACHINE: (MachineSession, ()),
}
_PEERS: dict[str, type[LlamaSession] | type[OpenVinoSession] | type[VllmSession]] = {
    LLAMA: LlamaSession,
    OPENVINO: OpenVinoSession,
    VLLM: VllmSession,
}


def opener(folder: Path, venvs: dict[str, Path], *, install: bool) -> Opener:
    """``folder`` takes the peers' environments, but for those in ``venvs``, and everybody's log."""

    def open_session(subject: str, setting: Setting) -> Session:
        log = folder / "logs" / f"{subject}.log".replace(" ", "-")
        if subject in _OURS:
            kind, flags = _OURS[subject]
            return kind(setting, log, flags)
        name = environment_for(subject, setting.isa)
        return _PEERS[subject](setting, log, prepare(name, venvs.get(name, folder / name), install=install))

    return open_session
