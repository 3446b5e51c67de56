"""Everything the serving process is started with, beyond the engine."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from rooftree.errors import ConfigError

_KEY = re.compile("[!-~]+")


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Options of ``rooftree serve`` that are not the engine's.

    Attributes:
        port: 0 takes any free one.
        api_keys: any of them opens every route; none: no key is asked for. Visible ASCII characters.
        served_model_names: names that requests may call the model by, the first being the one in answers;
            empty: the model as it was named at the start.
        generation_config: ``auto`` takes sampling defaults from the model's files, ``none`` does not.
        shutdown_timeout: seconds that running answers get to finish after SIGTERM.
        heartbeat_timeout: seconds of silence after which the engine counts as hung; above its longest step.
        max_body_size: bytes of a request body.

    Raises:
        ConfigError: an option out of its range. An empty key above all, as an unset variable in a script
            gives one, would open the server to everyone.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = ()
    served_model_names: tuple[str, ...] = ()
    generation_config: Literal["auto", "none"] = "auto"
    shutdown_timeout: float = 30.0
    heartbeat_timeout: float = 60.0
    max_body_size: int = 16 << 20

    def __post_init__(self) -> None:
        rules = [
            (all(map(_KEY.fullmatch, self.api_keys)), "api-key", "one or more visible ASCII characters"),
            (all(self.served_model_names), "served-model-name", "one or more characters"),
            (0 <= self.shutdown_timeout < float("inf"), "shutdown-timeout", "0 or more seconds"),
            (self.heartbeat_timeout > 0, "heartbeat-timeout", "more than 0 seconds"),
            (self.max_body_size > 0, "max-body-size", "at least 1 byte"),
        ]
        for holds, flag, rule in rules:
            if not holds:
                raise ConfigError(f"--{flag} must be {rule}")
