"""A stand-in for pip: ``python fake_pip.py PLAN download ... --dest FOLDER REQUIREMENT``.

PLAN is a JSON file: ``wheel`` (path of the file to deliver, or null), ``share`` of it that is delivered,
``pieces`` to write it in with ``pause`` seconds before each, ``output`` to print, ``status`` to exit with,
and ``log``, a file that gets this process's id and its arguments on a line for every call.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path


def main(plan_path: str, *arguments: str) -> int:
    """Do what the plan says."""
    plan = json.loads(Path(plan_path).read_text())
    with Path(plan["log"]).open("a") as log:
        log.write(json.dumps({"pid": os.getpid(), "arguments": arguments}) + "\n")
    print(plan["output"], flush=True)
    if plan["wheel"] is not None:
        target = Path(arguments[arguments.index("--dest") + 1])
        deliver(Path(plan["wheel"]), target, plan["share"], plan["pieces"], plan["pause"])
    return int(plan["status"])


def deliver(wheel: Path, target: Path, share: float, pieces: int, pause: float) -> None:
    """Write to the temporary folder first and move the file when it is done, as pip does."""
    content = wheel.read_bytes()
    content = content[: int(len(content) * share)]
    size = -(-len(content) // pieces)
    partial = Path(os.environ["TMPDIR"]) / "pip-unpack-x" / wheel.name
    partial.parent.mkdir()
    with partial.open("wb") as file:
        for index in range(pieces):
            time.sleep(pause)
            file.write(content[index * size : (index + 1) * size])
            file.flush()
    target.mkdir(exist_ok=True)
    partial.rename(target / wheel.name)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
