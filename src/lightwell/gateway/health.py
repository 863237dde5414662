"""Health, metrics and who we are. Live: the event loop answers. Ready: loaded, making progress, and not draining."""

from typing import Any

from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import lightwell
from lightwell.gateway.gateway import Gateway
from lightwell.gateway.reply import json_response


def health_routes(gateway: Gateway) -> list[Route]:
    async def ready(_: Request) -> Response:
        health = _health(gateway)
        return json_response(health, status=200 if health["status"] == "ok" else 503)

    async def live(_: Request) -> Response:
        return json_response({"status": "ok"})

    async def metrics(_: Request) -> Response:
        return Response(b"".join(model.metrics.render() for model in gateway.models), media_type=CONTENT_TYPE_LATEST)

    async def version(_: Request) -> Response:
        return json_response({"version": lightwell.__version__})

    return [
        Route("/health", ready),
        Route("/readyz", ready),
        Route("/livez", live),
        Route("/metrics", metrics),
        Route("/version", version),
    ]


def _health(gateway: Gateway) -> dict[str, Any]:
    """``phase`` is the engine's; ``status`` says whether to send work here, and if not, why."""
    status = gateway.models[0].engine.status
    return {
        "status": _word(gateway),
        "phase": status.phase,
        "running": status.running,
        "waiting": status.waiting,
        "queued": gateway.line.waiting,
        "last_step_age_seconds": round(status.last_step_age, 3),
    }


def _word(gateway: Gateway) -> str:
    status = gateway.models[0].engine.status
    if gateway.drain.draining:
        return "draining"
    if status.phase != "ready":
        return status.phase
    return "stalled" if status.last_step_age > gateway.stalled_after else "ok"
