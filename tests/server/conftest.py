"""One server around a fake engine for all tests of a file; those that change its engine start their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fake_llm import FakeLLM
from server_rig import RunningServer, running_server

from rooftree.server.config import ServerConfig


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server(FakeLLM(), ServerConfig(served_model_names=("tiny", "other/name"))) as running:
        yield running
