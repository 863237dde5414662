"""``lightwell batch``: many requests in a file, handed to a running server, and their answers fetched."""

import os
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightwell.errors import LightwellError, NotFound

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

_ENDED = ("failed", "completed", "expired", "cancelled")
_LOOK_SECONDS = 2.0
_TIMEOUT_SECONDS = 60.0


def submit(url: str, source: Path, endpoint: str, wait: bool) -> None:
    """Prints the batch's id, alone, so that it can be kept. Raises LightwellError with the server's own words."""
    with _server(url) as server:
        if not source.is_file():
            raise NotFound(f"There is no file {source}.")
        with source.open("rb") as content:
            file = _said(server.post("/v1/files", files={"file": (source.name, content)}, data={"purpose": "batch"}))
        body = {"input_file_id": file["id"], "endpoint": endpoint, "completion_window": "24h"}
        batch = _said(server.post("/v1/batches", json=body))
        print(batch["id"])
        if wait:
            _wait(server, batch["id"])


def status(url: str, batch: str | None) -> None:
    """One batch, or all that the server has of ours."""
    with _server(url) as server:
        batches = _said(server.get("/v1/batches?limit=100"))["data"] if batch is None else [_batch(server, batch)]
        for each in batches:
            print(_line(each))
            for error in (each["errors"] or {"data": []})["data"]:
                print(f"  line {error['line']}: {error['message']}")


def fetch(url: str, batch: str, output: Path | None, errors: bool) -> None:
    """The answers, or those that failed, into a file or to standard output."""
    with _server(url) as server:
        found = _batch(server, batch)
        name = found["error_file_id" if errors else "output_file_id"]
        if name is None:
            what = "failed requests" if errors else "answers"
            yet = "" if found["status"] in _ENDED else " yet"
            raise NotFound(f"{batch} is {found['status']} and has no {what}{yet}.")
        with server.stream("GET", f"/v1/files/{name}/content") as response:
            if response.is_error:
                response.read()
                _said(response)
            target = sys.stdout.buffer if output is None else output.open("wb")
            try:
                for piece in response.iter_bytes():
                    target.write(piece)
                target.flush()
            finally:
                if output is not None:
                    target.close()


@contextmanager
def _server(url: str) -> "Iterator[httpx.Client]":
    """A key comes from OPENAI_API_KEY, as with OpenAI's own tools."""
    import httpx

    key = os.environ.get("OPENAI_API_KEY")
    headers = {"authorization": f"Bearer {key}"} if key else {}
    try:
        with httpx.Client(
            base_url=url.removesuffix("/").removesuffix("/v1"), headers=headers, timeout=_TIMEOUT_SECONDS
        ) as client:
            yield client
    except httpx.HTTPError as error:
        raise LightwellError(
            f"{url} cannot be asked: {error or type(error).__name__}. Is the server running?"
        ) from None


def _said(response: "httpx.Response") -> Any:
    if response.is_error:
        try:
            message = response.json()["error"]["message"]
        except (ValueError, KeyError, TypeError):
            message = response.text[:500]
        raise LightwellError(f"The server answered {response.status_code}: {message}")
    return response.json()


def _batch(server: "httpx.Client", batch: str) -> Any:
    return _said(server.get(f"/v1/batches/{batch}"))


def _wait(server: "httpx.Client", name: str) -> None:
    while (batch := _batch(server, name))["status"] not in _ENDED:
        time.sleep(_LOOK_SECONDS)
    print(_line(batch), file=sys.stderr)


def _line(batch: Any) -> str:
    counts = batch["request_counts"]
    done = f"{counts['completed']} of {counts['total']} answered, {counts['failed']} failed"
    return f"{batch['id']}  {batch['status']}  {done}"
