"""/v1/admin/instructions: what chats of a key, a team or a model begin with."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lightwell.errors import InvalidRequest, NotFound
from lightwell.gateway.caller import caller_of
from lightwell.gateway.gateway import Gateway
from lightwell.gateway.parameters import read_body
from lightwell.gateway.reply import json_response
from lightwell.gateway.subjects import checked_subject


class _Body(msgspec.Struct):
    text: str


def instruction_routes(gateway: Gateway) -> list[Route]:
    async def listed(request: Request) -> Response:
        caller_of(request).check_admin()
        texts = await (await gateway.store.database()).instructions.all()
        data = [{"object": "instructions", "subject": subject, "text": texts[subject]} for subject in sorted(texts)]
        return json_response({"object": "list", "data": data})

    async def put(request: Request) -> Response:
        caller_of(request).check_admin()
        subject = checked_subject(request.path_params["subject"])
        body, warning = read_body(await request.body(), _Body)
        if not body.text.strip():
            raise InvalidRequest("'text' is empty: delete the instructions to have none.", param="text")
        await (await gateway.store.database()).instructions.put(subject, body.text)
        gateway.instructions.forget()
        return json_response({"object": "instructions", "subject": subject, "text": body.text}, warning)

    async def delete(request: Request) -> Response:
        caller_of(request).check_admin()
        subject = checked_subject(request.path_params["subject"])
        if not await (await gateway.store.database()).instructions.delete(subject):
            raise NotFound(f"There are no instructions for {subject!r}.")
        gateway.instructions.forget()
        return json_response({"object": "instructions.deleted", "subject": subject, "deleted": True})

    one = "/v1/admin/instructions/{subject:path}"
    return [
        Route("/v1/admin/instructions", listed),
        Route(one, put, methods=["PUT"]),
        Route(one, delete, methods=["DELETE"]),
    ]
