"""What the routes share: the engine, its names, and whether new work is welcome."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rooftree.errors import RequestError
from rooftree.server.config import ServerConfig
from rooftree.server.inflight import InFlight
from rooftree.server.json_body import BodyBudget
from rooftree.server.metrics import Metrics

if TYPE_CHECKING:
    from rooftree.engine.async_llm import AsyncLLM

# Bodies of the largest size that may be received at once; any number of smaller ones.
_BODIES = 16


class ServerState:
    """One served model.

    Attributes:
        model: its own name, whatever names it is served under.
        llm: set as soon as its start has begun.
        starting: see ``Job.starting``.
    """

    def __init__(self, config: ServerConfig, model: str, metrics: Metrics) -> None:
        self.config = config
        self.model = model
        self.metrics = metrics
        self.inflight = InFlight()
        self.starting = asyncio.Lock()
        self.bodies = BodyBudget(_BODIES * config.max_body_size)
        self.llm: AsyncLLM | None = None
        self.draining = False
        self.created = int(time.time())

    @property
    def names(self) -> tuple[str, ...]:
        """Names that the model answers to; the first stands in answers."""
        return self.config.served_model_names or (self.model,)

    @property
    def phase(self) -> str:
        """LOADING, READY, DRAINING, STOPPED, DEAD, or HUNG for an engine that has fallen silent."""
        if self.llm is None:
            return "LOADING"
        phase = str(self.llm.state)
        if phase == "READY":
            if self.draining:
                return "DRAINING"
            if self.llm.seconds_since_heartbeat > self.config.heartbeat_timeout:
                return "HUNG"
        return phase

    def ready_llm(self) -> AsyncLLM:
        """The engine, if it takes new work.

        Raises:
            RequestError: 503 with the reason.
        """
        phase = self.phase
        if phase == "READY" and self.llm is not None:
            return self.llm
        raise not_ready(phase)

    def model_name(self, asked: str | None) -> str:
        """The name to answer under; a request need not name the model.

        Raises:
            RequestError: 404 for a name that is not served.
        """
        if asked is None:
            return self.names[0]
        if asked in self.names:
            return asked
        served = ", ".join(repr(name) for name in self.names)
        raise RequestError(
            f"the model {asked[:200]!r} is not served here; served: {served}",
            status=404,
            param="model",
            code="model_not_found",
        )

    def sampling_defaults(self, llm: AsyncLLM) -> Mapping[str, float | int]:
        """The model's own sampling defaults, unless the server was told to leave them."""
        return llm.generation_defaults if self.config.generation_config == "auto" else {}


def not_ready(phase: str) -> RequestError:
    """The refusal of new work in a phase other than READY."""
    message, code, retry_after = {
        "LOADING": ("the model is still loading", "loading", 1.0),
        "DRAINING": ("the server is shutting down and takes no new work", "shutting_down", None),
        "STOPPED": ("the server has shut down", "shutting_down", None),
        "HUNG": ("the engine has not answered for too long", "engine_hung", None),
    }.get(phase, ("the engine has stopped", "engine_dead", None))
    return RequestError(message, status=503, code=code, retry_after=retry_after)
