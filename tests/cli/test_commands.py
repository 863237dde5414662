"""The commands as a person types them, on a tiny model: output, errors, and a conversation in a real terminal."""

import os
import pty
import signal
import subprocess
import sys
import time

import pytest

import lightwell
from tests.tiny_gguf import write_tiny_gguf

LIGHTWELL = [sys.executable, "-m", "lightwell.cli.main"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> str:
    return str(write_tiny_gguf(tmp_path_factory.mktemp("models") / "tiny.gguf", context=8192))


def command(*words: str, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run([*LIGHTWELL, *words], capture_output=True, text=True, input=text, timeout=120)


def test_version_and_help():
    assert command("--version").stdout.strip() == lightwell.__version__
    shown = command("--help").stdout
    assert all(name in shown for name in ("serve", "run", "chat", "pull", "models", "bench"))


def test_run_gives_the_same_answer_for_the_same_seed(tiny):
    flags = ["--max-tokens", "30", "--temperature", "1.5"]
    first, again = (command("run", tiny, "Hello", *flags, "--seed", "4") for _ in range(2))
    assert first.returncode == 0, first.stderr
    assert first.stdout == again.stdout
    assert first.stdout != command("run", tiny, "Hello", *flags, "--seed", "5").stdout


def test_run_reads_its_prompt_from_standard_input(tiny):
    given = command("run", tiny, "Hello", "--raw", "--max-tokens", "9")
    assert command("run", tiny, "-", "--raw", "--max-tokens", "9", text="Hello").stdout == given.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["run", "smolm2", "x"], "Did you mean 'smollm2'"),
        (["run", "/nowhere/model.gguf", "x"], "/nowhere/model.gguf"),
        (["pull", "hf:nonsense"], "hf:organisation/repository/file.gguf"),
        (["bench", "decode", "gemma4"], "Known models"),
    ],
)
def test_an_error_is_one_line_that_says_what_to_do(words, says):
    done = command(*words)
    assert done.returncode == 1
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_too_long_a_prompt_is_refused_with_the_numbers(tiny):
    done = command("run", tiny, "x" * 9000, "--raw")
    assert done.returncode == 1
    assert "9000" in done.stderr
    assert "8192" in done.stderr


def test_models_lists_the_catalog(tmp_path, monkeypatch):
    monkeypatch.setenv("LIGHTWELL_CACHE", str(tmp_path))
    shown = command("models").stdout
    assert "smollm2" in shown
    assert "gemma3:270m" in shown
    assert "not pulled" in shown


@pytest.mark.parametrize("kind", ["decode", "prefill"])
def test_bench_prints_a_rate(tiny, kind):
    shown = command("bench", kind, tiny, "--tokens", "40", "--repeat", "2").stdout
    assert "tokens/s" in shown


def test_bench_serve_runs_a_server_and_reports(tiny):
    flags = ["--concurrency", "3", "--requests", "6", "--prompt-tokens", "20", "--output-tokens", "8"]
    done = command("bench", "serve", tiny, *flags)
    assert "3 streams, 6 requests" in done.stdout, done.stderr


def test_bench_start_reports_both_kinds_of_start(tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("LIGHTWELL_CACHE", str(tmp_path))
    done = command("bench", "start", tiny, "--repeat", "1")
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == [
        "start to first token, pack cache warm",
        "start to first token, pack cache none",
    ], done.stderr


def test_cache_lists_what_a_run_kept_and_clears_it(tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("LIGHTWELL_CACHE", str(tmp_path))
    command("run", tiny, "Hello", "--max-tokens", "1", "--no-pack-cache")
    assert command("cache").stdout.splitlines()[1:] == []
    command("run", tiny, "Hello", "--max-tokens", "1")
    (line,) = command("cache").stdout.splitlines()[1:]
    assert line.startswith("tiny.gguf")
    assert command("cache", "--clear").returncode == 0
    assert command("cache").stdout.splitlines()[1:] == []


class Terminal:
    """A chat in a pseudo-terminal."""

    def __init__(self, *words: str) -> None:
        self.side, other = pty.openpty()
        self.process = subprocess.Popen([*LIGHTWELL, *words], stdin=other, stdout=other, stderr=other, close_fds=True)
        os.close(other)
        os.set_blocking(self.side, False)
        self.screen = ""

    def type(self, line: str) -> None:
        os.write(self.side, f"{line}\n".encode())

    def read(self) -> None:
        try:
            self.screen += os.read(self.side, 1 << 16).decode(errors="replace")
        except (BlockingIOError, OSError):
            time.sleep(0.02)

    def wait_for(self, condition, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, self.screen[-2000:]
            self.read()

    def prompts(self) -> int:
        return self.screen.count("> ")


def test_a_chat_in_the_terminal(tiny):
    chat = Terminal("chat", tiny, "--temperature", "0")
    chat.wait_for(lambda: "/help" in chat.screen and chat.prompts() == 1)
    chat.type("/nonsense")
    chat.wait_for(lambda: "no command /nonsense" in chat.screen)
    chat.type("/system Be brief.")
    chat.type("/clear")
    chat.screen = ""
    chat.type("Tell me a long story.")  # the tiny model fills the window unless it is stopped
    chat.wait_for(lambda: len(chat.screen) > 400)
    chat.process.send_signal(signal.SIGINT)
    before = len(chat.screen)
    chat.wait_for(lambda: chat.screen[before:].rstrip(" ").endswith("\n>") or chat.screen.endswith("> "))
    assert chat.process.poll() is None, "Ctrl-C stops the answer, not the program"
    chat.type("/exit")
    chat.wait_for(lambda: chat.process.poll() is not None)
    assert chat.process.returncode == 0
