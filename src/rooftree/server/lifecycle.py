"""The serving process from its first breath to its exit status.

The port is taken before anything is read, so that a taken one costs no loading; the engine process starts
next, so that it loads while this process imports its HTTP libraries.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from rooftree.checkpoint.pull import KNOWN, find_pulled
from rooftree.engine.async_llm import AsyncLLM
from rooftree.engine.config import EngineConfig, check_config
from rooftree.server.config import ServerConfig
from rooftree.server.listen import listen
from rooftree.server.load_log import LoadLog, StatReaders
from rooftree.server.metrics import Metrics


def serve(engine: EngineConfig, server: ServerConfig, started: float | None = None) -> int:
    """Serve until told to stop.

    Args:
        started: ``time.monotonic()`` when the command began, for the report.

    Returns:
        The exit status: 0 after a stop that was asked for, 1 if the engine died.

    Raises:
        ConfigError, ModelError: why it cannot start.
    """
    started = time.monotonic() if started is None else started
    check_config(engine)
    listener = listen(server.host, server.port)
    name = model_name(engine.model)
    metrics = Metrics((server.served_model_names or (name,))[0])
    readers = StatReaders((metrics, LoadLog()))
    llm = AsyncLLM.start(engine, readers) if is_local(engine.model) else None
    try:
        from rooftree.server.service import Service
        from rooftree.server.state import ServerState
    except BaseException:
        if llm is not None:
            asyncio.run(llm.shutdown())
        raise
    state = ServerState(server, name, metrics)
    state.llm = llm
    return asyncio.run(Service(engine, state, readers, started).run(listener))


def is_local(model: str) -> bool:
    """Whether a model can be opened without the network."""
    if model in KNOWN:
        return find_pulled(model) is not None
    return not model.startswith("hf:")


def model_name(model: str) -> str:
    """The name that a model is served under unless another is given."""
    if model in KNOWN:
        return model
    if model.startswith("hf:"):
        return model.removeprefix("hf:").partition("@")[0]
    path = Path(model).expanduser().resolve()
    return path.stem if path.suffix == ".gguf" else path.name
