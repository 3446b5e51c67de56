"""The engine process with a fake executor. The model's name says how it behaves:

``fake``; ``slow`` (20 ms a step); ``long`` and ``stuck`` (3 s a step, getting on
or not); ``mortal`` (dies of a defect at the tenth step); ``refuses`` (a ConfigError
at the start); ``crashes`` (a defect at the start); ``loads`` (never becomes ready).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from engine_fakes import make_core

from rooftree.engine.config import EngineConfig
from rooftree.engine.core import EngineCore
from rooftree.engine.messages import EngineReady
from rooftree.engine.process import run
from rooftree.errors import ConfigError

NUM_BLOCKS = 64
MAX_MODEL_LEN = 512


def build(config: EngineConfig, progress: Callable[[str], None]) -> tuple[EngineCore, EngineReady]:
    progress("open")
    if config.model == "refuses":
        raise ConfigError("--max-model-len is too large by half")
    if config.model == "crashes":
        raise ZeroDivisionError("a defect")
    while config.model == "loads":
        time.sleep(1)
    core = make_core(config, num_blocks=NUM_BLOCKS, max_model_len=MAX_MODEL_LEN)
    execute = core.executor.execute

    def hooked(output: Any) -> Any:
        if config.model == "slow":
            time.sleep(0.02)
        for _ in range(30 if config.model in ("long", "stuck") else 0):
            time.sleep(0.1)
            core.executor.progress += config.model == "long"
        if config.model == "mortal" and core.executor.num_steps == 10:
            raise ZeroDivisionError("a defect in the tenth step")
        return execute(output)

    core.executor.execute = hooked
    return core, EngineReady(NUM_BLOCKS, config.block_size, MAX_MODEL_LEN, {"open": 0.0}, [])


if __name__ == "__main__":
    folder, options = sys.argv[1:]
    sys.exit(run(Path(folder), msgspec.json.decode(options, type=EngineConfig), build))
