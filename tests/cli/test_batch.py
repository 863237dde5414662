"""``lightwell batch`` against a server that is killed half way."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from lightwell.cli.main import app
from lightwell.errors import LightwellError, NotFound

CHAT = "/v1/chat/completions"


class Server:
    """With a scripted engine, over one store."""

    def __init__(self, store):
        command = [sys.executable, "-m", "tests.gateway.fake_server", "5", str(store)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.url = f"http://127.0.0.1:{int(self.process.stdout.readline())}"

    def run(self, *arguments: str) -> str:
        result = CliRunner().invoke(app, ["batch", *arguments, "--url", self.url])
        if result.exception is not None:
            raise result.exception
        return result.stdout

    def answered(self, batch: str) -> int:
        return int(re.search(r"(\d+) of", self.run("status", batch))[1])

    def end(self, how: signal.Signals) -> None:
        os.kill(self.process.pid, how)
        self.process.communicate(timeout=30)


@pytest.fixture
def servers(tmp_path):
    started = []

    def start() -> Server:
        started.append(Server(tmp_path / "store.db"))
        return started[-1]

    yield start
    for server in started:
        if server.process.poll() is None:
            server.end(signal.SIGTERM)


def requests(count: int, text: str = "slow 0.05") -> str:
    lines = []
    for number in range(count):
        body = {"model": "tiny", "messages": [{"role": "user", "content": text}]}
        lines.append(json.dumps({"custom_id": f"n{number}", "method": "POST", "url": CHAT, "body": body}))
    return "\n".join(lines)


@pytest.mark.slow
def test_a_batch_goes_on_where_a_killed_server_left_it(servers, tmp_path, monkeypatch):
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(requests(500))
    server = servers()
    batch = server.run("submit", str(source)).strip()
    while not 100 <= server.answered(batch) < 400:
        assert server.answered(batch) < 400
        time.sleep(0.05)
    server.end(signal.SIGKILL)
    server = servers()
    before = server.answered(batch)
    assert 100 <= before < 500
    while "completed" not in server.run("status", batch):
        time.sleep(0.2)
    server.run("fetch", batch, "-o", str(output))
    answers = [json.loads(line) for line in output.read_text().splitlines()]
    assert [answer["custom_id"] for answer in answers] == [f"n{number}" for number in range(500)]
    bodies = [answer["response"]["body"] for answer in answers]
    assert {body["choices"][0]["message"]["content"] for body in bodies} == {"begin end"}

    monkeypatch.setenv("LIGHTWELL_STORE", str(tmp_path / "store.db"))
    (used,) = map(json.loads, CliRunner().invoke(app, ["usage", "--by", "model", "--json"]).stdout.splitlines())
    assert used["requests"] == 500
    for name, of_answer in (("prompt_tokens", "prompt_tokens"), ("output_tokens", "completion_tokens")):
        assert used[name] == sum(body["usage"][of_answer] for body in bodies)


def test_submit_status_and_fetch(servers, tmp_path):
    source = tmp_path / "in.jsonl"
    source.write_text(requests(3, "quick"))
    server = servers()
    batch = server.run("submit", str(source), "--wait").splitlines()[0]
    assert server.run("status") == server.run("status", batch) == f"{batch}  completed  3 of 3 answered, 0 failed\n"
    assert len(server.run("fetch", batch).splitlines()) == 3
    with pytest.raises(NotFound, match="completed and has no failed requests"):
        server.run("fetch", batch, "--errors")


def test_what_is_wrong_is_said(servers, tmp_path):
    source = tmp_path / "in.jsonl"
    source.write_text("nonsense")
    server = servers()
    with pytest.raises(NotFound, match="There is no file"):
        server.run("submit", str(tmp_path / "none"))
    with pytest.raises(LightwellError, match="404: There is no batch"):
        server.run("status", "batch_x")
    with pytest.raises(LightwellError, match="batches are for"):
        server.run("submit", str(source), "--endpoint", "/v1/none")
    batch = server.run("submit", str(source), "--wait").splitlines()[0]
    assert "line 1: The line is no request" in server.run("status", batch)
    server.end(signal.SIGTERM)
    with pytest.raises(LightwellError, match="Is the server running"):
        server.run("status")
