"""Files and batches: each line answered once, whatever happens between; each tenant sees its own."""

import asyncio
import json
import time
from collections import Counter
from contextlib import asynccontextmanager

import msgspec
import pytest

from lightwell.errors import Overloaded
from lightwell.gateway import ledger
from lightwell.gateway.batches.lines import read_lines
from lightwell.gateway.batches.runner import BatchRunner
from lightwell.gateway.caller import Caller
from tests.gateway.fake_engine import Script, make_client, says

CHAT = "/v1/chat/completions"


def line(name: str, content: str = "Hi", **more) -> dict:
    body = {"model": "tiny", "messages": [{"role": "user", "content": content}], "max_tokens": 20} | more
    return {"custom_id": name, "method": "POST", "url": CHAT, "body": body}


def text_of(lines: list[dict]) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in lines)


async def upload(client, content: bytes, purpose: str = "batch", **form):
    return await client.post("/v1/files", files={"file": ("in.jsonl", content)}, data={"purpose": purpose, **form})


async def create(client, content: bytes, **more) -> dict:
    file = (await upload(client, content)).json()["id"]
    body = {"input_file_id": file, "endpoint": CHAT, "completion_window": "24h"} | more
    response = await client.post("/v1/batches", json=body)
    assert response.status_code == 200, response.text
    return response.json()


@asynccontextmanager
async def running(gateway, at_once: int = 8):
    task = asyncio.create_task(BatchRunner(gateway, at_once).run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait({task})


async def ended(client, batch: dict) -> dict:
    while (now := (await client.get(f"/v1/batches/{batch['id']}")).json())["status"] in (
        "validating",
        "in_progress",
        "finalizing",
        "cancelling",
    ):
        await asyncio.sleep(0.02)
    return now


async def content(client, file: str | None) -> list[dict]:
    return [json.loads(text) for text in (await client.get(f"/v1/files/{file}/content")).text.splitlines()]


async def test_every_line_is_answered_in_its_place(client, gateway, engine):
    names = [f"line-{n}" for n in range(30)]
    async with running(gateway):
        batch = await ended(client, await create(client, text_of([line(name) for name in names]), metadata={"a": "b"}))
    assert (batch["status"], batch["metadata"]) == ("completed", {"a": "b"})
    assert batch["request_counts"] == {"total": 30, "completed": 30, "failed": 0}
    assert batch["error_file_id"] is None
    assert batch["created_at"] <= batch["in_progress_at"] <= batch["finalizing_at"] <= batch["completed_at"]
    answers = await content(client, batch["output_file_id"])
    assert [answer["custom_id"] for answer in answers] == names
    assert len({answer["id"] for answer in answers}) == 30
    for answer in answers:
        assert answer["error"] is None
        assert answer["response"]["status_code"] == 200
        assert answer["response"]["body"]["choices"][0]["message"]["content"] == "Hello world"
    assert all(request.priority > 0 for request in engine.requests)


async def test_lines_over_a_limit_are_asked_again_and_billed_once(client, gateway, engine, monkeypatch):
    monkeypatch.setattr("lightwell.gateway.batches.runner._RETRY_SECONDS", 0.01)
    engine.script = lambda request: Script([0.05, 97, 257])
    await client.put("/v1/admin/limits/default", json={"concurrent_requests": 1})
    async with running(gateway):
        batch = await ended(client, await create(client, text_of([line("a"), line("b"), line("c")])))
    assert batch["request_counts"] == {"total": 3, "completed": 3, "failed": 0}
    (total,) = await (await gateway.store.database()).usage.sums(())
    assert (total.requests, total.failed) == (3, 0)


async def test_a_line_whose_row_of_usage_fails_is_answered_in_another_try(client, gateway, monkeypatch):
    """It waits for its row: one that is never made must not keep it for ever."""
    made, failures = ledger._row, iter([RuntimeError("no row")])

    def at_first_none(*arguments):
        for failure in failures:
            raise failure
        return made(*arguments)

    monkeypatch.setattr(ledger, "_row", at_first_none)
    async with asyncio.timeout(20), running(gateway):
        batch = await ended(client, await create(client, text_of([line("a"), line("b")])))
    assert batch["request_counts"] == {"total": 2, "completed": 2, "failed": 0}
    (total,) = await (await gateway.store.database()).usage.sums(())
    assert total.requests == 2


async def test_a_line_that_fails_is_in_the_other_file(client, gateway):
    lines = [line("good"), line("bad", temperature=9), line("unknown", model="other")]
    async with running(gateway):
        batch = await ended(client, await create(client, text_of(lines)))
    assert batch["request_counts"] == {"total": 3, "completed": 1, "failed": 2}
    assert [answer["custom_id"] for answer in await content(client, batch["output_file_id"])] == ["good"]
    bad, unknown = await content(client, batch["error_file_id"])
    assert (bad["custom_id"], bad["response"]["status_code"]) == ("bad", 400)
    assert bad["response"]["body"]["error"]["param"] == "temperature"
    assert unknown["response"]["body"]["error"]["code"] == "model_not_found"


async def test_completions_are_served_too(client, gateway):
    body = {"model": "tiny", "prompt": "Once", "max_tokens": 5}
    asked = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": body}
    async with running(gateway):
        batch = await ended(client, await create(client, text_of([asked]), endpoint="/v1/completions"))
    (answer,) = await content(client, batch["output_file_id"])
    assert answer["response"]["body"]["choices"][0]["text"] == "Hello"


async def test_embeddings_are_served_too(client, gateway, engine):
    bodies = [{"model": "tiny", "input": ["Once", "upon"]}, {"model": "tiny", "input": "a", "dimensions": 9999}]
    asked = [
        {"custom_id": str(n), "method": "POST", "url": "/v1/embeddings", "body": body} for n, body in enumerate(bodies)
    ]
    async with running(gateway):
        batch = await ended(client, await create(client, text_of(asked), endpoint="/v1/embeddings"))
    (answer,) = await content(client, batch["output_file_id"])
    assert [each["index"] for each in answer["response"]["body"]["data"]] == [0, 1]
    assert all(request.priority > 0 for request in engine.requests)
    (failed,) = await content(client, batch["error_file_id"])
    assert failed["response"]["body"]["error"]["param"] == "dimensions"


@pytest.mark.parametrize(
    ("text", "number", "what"),
    [
        (b"", None, "no requests"),
        (b"{}\n", 1, "custom_id"),
        (b"nonsense\n", 1, "no request"),
        (b"\xff\xfe\n", 1, "no request"),
        (text_of([line("a"), line("a")]), 2, "Two lines"),
        (text_of([line("a"), line("b") | {"method": "GET"}]), 2, "method"),
        (text_of([line("a") | {"url": "/v1/embeddings"}]), 1, "url"),
        (text_of([line("a") | {"body": []}]), 1, "body"),
        (text_of([line("a", stream=True)]), 1, "stream"),
        (b'{"a":' * 100_000 + b"\n", 1, "no request"),
    ],
)
async def test_a_file_with_errors_is_not_begun(client, gateway, engine, text, number, what):
    async with running(gateway):
        batch = await ended(client, await create(client, text))
    assert batch["status"] == "failed"
    error = batch["errors"]["data"][0]
    assert error["line"] == number
    assert what in error["message"]
    assert engine.requests == []


async def test_lines_are_read_whatever_pieces_they_come_in():
    text = text_of([line(f"n{n}") for n in range(5)]).replace(b"\n", b"\n\n")

    async def pieces(size):
        for start in range(0, len(text), size):
            yield text[start : start + size]

    for size in (1, 7, 1000, 10**6):
        lines, errors = await read_lines("b", CHAT, pieces(size))
        assert ([each.custom_id for each in lines], errors) == ([f"n{n}" for n in range(5)], [])


async def test_what_is_refused_for_now_is_asked_again(client, gateway, engine, monkeypatch):
    monkeypatch.setattr("lightwell.gateway.batches.runner._RETRY_SECONDS", 0.01)
    refused = Counter()

    def script(request):
        refused["asked"] += 1
        return Script([Overloaded("busy")]) if refused["asked"] <= 3 else says("yes")

    engine.script = script
    async with running(gateway):
        batch = await ended(client, await create(client, text_of([line("a")])))
    assert batch["request_counts"]["completed"] == 1
    assert refused["asked"] == 4


async def test_cancelling_keeps_what_was_answered(client, gateway, engine):
    engine.script = lambda request: Script([60.0]) if ord("!") in request.tokens else says("ok")
    async with running(gateway, at_once=2):
        batch = await create(client, text_of([line("a"), *(line(f"s{n}", "!") for n in range(5))]))
        while len(engine.open) < 2:
            await asyncio.sleep(0.01)
        response = await client.post(f"/v1/batches/{batch['id']}/cancel")
        assert response.json()["status"] == "cancelling"
        batch = await ended(client, batch)
        assert (await client.post(f"/v1/batches/{batch['id']}/cancel")).json()["status"] == "cancelled"
    assert batch["status"] == "cancelled"
    assert [answer["custom_id"] for answer in await content(client, batch["output_file_id"])] == ["a"]
    left = await content(client, batch["error_file_id"])
    assert [(each["custom_id"], each["error"]["code"]) for each in left] == [
        (f"s{n}", "batch_cancelled") for n in range(5)
    ]
    assert engine.open == set()


async def test_what_takes_too_long_expires(client, gateway, engine):
    engine.script = lambda request: Script([60.0])
    async with running(gateway):
        batch = await create(client, text_of([line("a")]))
        while not engine.open:
            await asyncio.sleep(0.01)
        database = await gateway.store.database()
        await database.batches.change(
            batch["id"], ("in_progress",), lambda now: msgspec.structs.replace(now, expires_at=time.time())
        )
        gateway.batch_work.set()
        batch = await ended(client, batch)
    assert batch["status"] == "expired"
    (left,) = await content(client, batch["error_file_id"])
    assert left["error"]["code"] == "batch_expired"


async def test_two_processes_share_a_batch_and_answer_each_line_once(client, gateway, engine):
    names = [f"n{n}" for n in range(60)]
    async with running(gateway, at_once=3), running(gateway, at_once=3):
        batch = await ended(client, await create(client, text_of([line(name) for name in names])))
    assert [answer["custom_id"] for answer in await content(client, batch["output_file_id"])] == names
    assert len(engine.requests) == 60


async def test_a_runner_that_is_stopped_leaves_its_lines_to_the_next(client, gateway, engine):
    engine.script = lambda request: Script([60.0])
    async with running(gateway):
        batch = await create(client, text_of([line(f"n{n}") for n in range(5)]))
        while len(engine.open) < 5:
            await asyncio.sleep(0.01)
    assert engine.open == set()
    engine.script = lambda request: says("again")
    async with running(gateway):
        batch = await ended(client, batch)
    assert batch["request_counts"] == {"total": 5, "completed": 5, "failed": 0}


async def test_the_lines_of_a_dead_process_are_taken_once_it_is_known_to_be_dead(client, gateway):
    batch = await create(client, text_of([line("a")]))
    async with running(gateway, at_once=0):
        while (await client.get(f"/v1/batches/{batch['id']}")).json()["status"] != "in_progress":
            await asyncio.sleep(0.01)
    batches = (await gateway.store.database()).batches
    await batches.keep_alive("one", 100.0)
    (taken,) = await batches.claim(batch["id"], "one", 5, 50.0, [])
    assert await batches.claim(batch["id"], "two", 5, 99.0, []) == []
    assert await batches.claim(batch["id"], "one", 5, 99.0, [taken.number]) == []
    (again,) = await batches.claim(batch["id"], "two", 5, 100.0, [])
    assert again == taken
    async with (await gateway.store.database()).transaction() as session:
        assert not await batches.answer(taken, "one", b"late", succeeded=True, session=session)
        assert await batches.answer(taken, "two", b"first", succeeded=True, session=session)
        assert not await batches.answer(taken, "two", b"second", succeeded=True, session=session)
    assert [each async for each in batches.answers(batch["id"], succeeded=True)] == [b"first"]


async def test_files_are_kept_listed_and_deleted(client):
    big = bytes(range(256)) * 10_000  # more than one part
    files = [(await upload(client, each)).json() for each in (b"one", b"", big)]
    assert [file["bytes"] for file in files] == [3, 0, len(big)]
    assert (await client.get(f"/v1/files/{files[2]['id']}/content")).content == big
    assert (await client.get(f"/v1/files/{files[1]['id']}/content")).content == b""
    newest = (await client.get("/v1/files", params={"limit": 2})).json()
    assert [file["id"] for file in newest["data"]] == [files[2]["id"], files[1]["id"]]
    assert newest["has_more"]
    rest = (await client.get("/v1/files", params={"after": newest["last_id"]})).json()
    assert [file["id"] for file in rest["data"]] == [files[0]["id"]]
    oldest = (await client.get("/v1/files", params={"order": "asc", "purpose": "batch"})).json()["data"]
    assert [file["id"] for file in oldest] == [file["id"] for file in files]
    assert (await client.get("/v1/files", params={"purpose": "user_data"})).json()["data"] == []
    assert (await client.delete(f"/v1/files/{files[0]['id']}")).json()["deleted"] is True
    assert (await client.get(f"/v1/files/{files[0]['id']}")).status_code == 404


async def test_a_file_may_expire(client, gateway):
    form = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}
    file = (await upload(client, b"x", **form)).json()
    assert file["expires_at"] == file["created_at"] + 3600
    files = (await gateway.store.database()).files
    assert await files.find("user:local", file["id"], time.time() + 3599) is not None
    assert await files.find("user:local", file["id"], time.time() + 3601) is None
    assert await files.delete_expired(time.time() + 3601) == 1


@pytest.mark.parametrize(
    ("form", "what"),
    [
        ({"purpose": "fine-tune"}, "purpose"),
        ({"expires_after[anchor]": "created_at", "expires_after[seconds]": "5"}, "expires_after"),
        ({"expires_after[seconds]": "5000"}, "expires_after"),
    ],
)
async def test_an_upload_that_asks_for_what_is_not_is_refused(client, form, what):
    response = await client.post("/v1/files", files={"file": ("x", b"x")}, data={"purpose": "batch"} | form)
    assert (response.status_code, response.json()["error"]["param"]) == (400, what)


@pytest.mark.parametrize(
    "body", [{"content": b"no form"}, {"data": {"purpose": "batch"}}, {"files": {"other": ("x", b"x")}}]
)
async def test_a_form_without_a_file_is_refused(client, body):
    response = await client.post("/v1/files", **body)
    assert response.status_code == 400
    assert response.json()["error"]["message"]


@pytest.mark.parametrize("more", [{"endpoint": "/v1/other"}, {"input_file_id": "file-x"}, {"completion_window": "1h"}])
async def test_a_batch_of_nothing_is_refused(client, more):
    file = (await upload(client, b"x")).json()["id"]
    body = {"input_file_id": file, "endpoint": CHAT, "completion_window": "24h"} | more
    response = await client.post("/v1/batches", json=body)
    assert response.status_code in (400, 404)
    assert response.json()["error"]["param"] in ("endpoint", "file_id", "completion_window")


async def test_tenants_do_not_see_each_other(client, gateway, monkeypatch):
    file = (await upload(client, text_of([line("a")]))).json()["id"]
    batch = (await create(client, text_of([line("a")])))["id"]
    monkeypatch.setattr("lightwell.gateway.authenticate.LOCAL", Caller(key="k", user="other"))
    async with make_client(gateway) as other:
        for path in (f"/v1/files/{file}", f"/v1/files/{file}/content", f"/v1/batches/{batch}"):
            assert (await other.get(path)).status_code == 404
        assert (await other.delete(f"/v1/files/{file}")).status_code == 404
        assert (await other.post(f"/v1/batches/{batch}/cancel")).status_code == 404
        assert (await other.get("/v1/files")).json()["data"] == (await other.get("/v1/batches")).json()["data"] == []
        body = {"input_file_id": file, "endpoint": CHAT, "completion_window": "24h"}
        assert (await other.post("/v1/batches", json=body)).status_code == 404
    monkeypatch.undo()
    assert len((await client.get("/v1/files")).json()["data"]) == 2


async def test_nothing_is_opened_where_there_are_no_batches(gateway):
    async with running(gateway):
        await asyncio.sleep(0.05)
    assert gateway.store.is_new
