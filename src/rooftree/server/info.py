"""The routes that tell about the server: models, health, version, metrics, and what stands at the root."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from rooftree import __version__
from rooftree.server.answers import JsonAnswer
from rooftree.server.errors import error_body
from rooftree.server.exposition import Exposition
from rooftree.server.protocol import ModelCard, ModelList
from rooftree.server.requests import state_of
from rooftree.server.state import ServerState, not_ready


async def models(request: Request) -> JsonAnswer:
    """GET /v1/models."""
    state = state_of(request)
    return JsonAnswer(ModelList([_card(state, name) for name in state.names]))


async def model(request: Request) -> JsonAnswer:
    """GET /v1/models/{id}, where the id may hold slashes."""
    state = state_of(request)
    return JsonAnswer(_card(state, state.model_name(request.path_params["id"])))


def _card(state: ServerState, name: str) -> ModelCard:
    return ModelCard(name, state.created, state.model, state.ready_llm().max_model_len)


async def health(request: Request) -> JsonAnswer:
    """GET /health: 200 while the engine's loop beats and new work is welcome, 503 otherwise."""
    state = state_of(request)
    phase = state.phase
    if phase != "READY":
        # Not an ``ErrorAnswer``: a probe is no request that was refused.
        return JsonAnswer(error_body(not_ready(phase)), 503)
    return JsonAnswer({"status": "ready"})


async def version(request: Request) -> JsonAnswer:
    """GET /version."""
    return JsonAnswer({"version": __version__})


async def root(request: Request) -> JsonAnswer:
    """GET /."""
    state = state_of(request)
    return JsonAnswer(
        {
            "name": "rooftree",
            "version": __version__,
            "status": state.phase.lower(),
            "models": list(state.names),
            "endpoints": sorted({route.path for route in request.app.routes} - {"/"}),
        }
    )


async def metrics(request: Request) -> Response:
    """GET /metrics, in Prometheus' text format."""
    exposition: Exposition = request.app.state.exposition
    return Response(exposition.text(), media_type="text/plain; version=0.0.4")
