"""The app: routes, errors and the frame around them, from one Gateway. Nothing is kept in modules."""

from dataclasses import replace

from starlette.applications import Starlette
from starlette.middleware import Middleware

from lightwell.gateway.authenticate import Authenticate
from lightwell.gateway.batches.batches_api import batch_routes
from lightwell.gateway.batches.files_api import file_routes
from lightwell.gateway.chat import chat_routes
from lightwell.gateway.completions import completion_routes
from lightwell.gateway.embeddings import embedding_routes
from lightwell.gateway.failures import ERROR_HANDLERS
from lightwell.gateway.frame import Frame
from lightwell.gateway.gateway import Gateway
from lightwell.gateway.health import health_routes
from lightwell.gateway.instructions_api import instruction_routes
from lightwell.gateway.keys_api import key_routes
from lightwell.gateway.limits_api import limit_routes
from lightwell.gateway.messages.routes import message_routes
from lightwell.gateway.models import model_routes
from lightwell.gateway.ollama.routes import ollama_routes
from lightwell.gateway.page_files import page_routes
from lightwell.gateway.responses.routes import response_routes
from lightwell.gateway.tokens import token_routes
from lightwell.gateway.usage_api import usage_routes

_ROUTES = (
    chat_routes,
    completion_routes,
    response_routes,
    embedding_routes,
    message_routes,
    ollama_routes,
    model_routes,
    token_routes,
    file_routes,
    batch_routes,
    key_routes,
    usage_routes,
    limit_routes,
    instruction_routes,
    health_routes,
)


def create_app(gateway: Gateway) -> Starlette:
    """Starlette and not FastAPI: bodies are read by our own structs (bodies.py), and it is imported in a third of
    the time, which counts from the start of a server to its first token."""
    pages = page_routes(gateway)
    access = replace(gateway.access, public=gateway.access.public | {route.path for route in pages})
    app = Starlette(
        routes=[*(route for routes in _ROUTES for route in routes(gateway)), *pages],
        middleware=[Middleware(Frame, drain=gateway.drain), Middleware(Authenticate, access=access, keys=gateway.keys)],
        exception_handlers=ERROR_HANDLERS,
    )
    app.router.redirect_slashes = False
    return app
