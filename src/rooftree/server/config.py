"""Everything the serving process is started with, beyond the engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Options of ``rooftree serve`` that are not the engine's.

    Attributes:
        port: 0 takes any free one.
        api_keys: any of them opens every route; none: no key is asked for.
        served_model_names: names that requests may call the model by, the first being the one in answers;
            empty: the model as it was named at the start.
        generation_config: ``auto`` takes sampling defaults from the model's files, ``none`` does not.
        shutdown_timeout: seconds that running answers get to finish after SIGTERM.
        heartbeat_timeout: seconds of silence after which the engine counts as hung; above its longest step.
        max_body_size: bytes of a request body.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = ()
    served_model_names: tuple[str, ...] = ()
    generation_config: Literal["auto", "none"] = "auto"
    shutdown_timeout: float = 30.0
    heartbeat_timeout: float = 60.0
    max_body_size: int = 16 << 20
