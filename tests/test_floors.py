"""The shape of the project: a file imports only from its own floor or below."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import rooftree

# Highest first; floors in one entry may not import each other.
FLOORS: list[set[str]] = [
    {"cli"},
    {"server", "planner"},
    {"bench", "probe"},
    {"engine"},
    {"scheduler"},
    {"kvcache"},
    {"models"},
    {"sampling", "kernels"},
    {"checkpoint", "text"},
    {"roofline"},
    {"specs"},
    {"errors", "_native"},
]
LEVEL = {name: len(FLOORS) - i for i, names in enumerate(FLOORS) for name in names}

# Contracts that a neighbouring floor may read: plain data, no logic.
SHARED_DATA = {
    ("text", "rooftree.checkpoint.base"),
    ("kernels", "rooftree.sampling.params"),
}


def package_root() -> Path:
    return Path(rooftree.__file__).parent


def rooftree_imports(path: Path) -> Iterator[str]:
    """Modules of the package that a file imports, wherever in the file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("rooftree."))
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            if node.module == "rooftree":
                yield from (
                    f"rooftree.{alias.name}" for alias in node.names if not alias.name.startswith("__")
                )
            elif node.module.startswith("rooftree."):
                yield node.module


def floor_of(module: str) -> str:
    return module.split(".")[1]


def test_every_package_has_a_floor() -> None:
    names = {p.name if p.is_dir() else p.stem for p in package_root().iterdir()}
    names = {n for n in names if not n.startswith("__")} - {"py.typed", "_native"}
    assert {n.split(".")[0] for n in names} - {"py", "_native"} <= set(LEVEL)


def test_imports_go_down_only() -> None:
    upward = []
    for path in package_root().rglob("*.py"):
        relative = path.relative_to(package_root())
        if len(relative.parts) < 2:
            continue
        here = relative.parts[0]
        for module in rooftree_imports(path):
            there = floor_of(module)
            down = LEVEL[there] < LEVEL[here] or there == here
            if not down and (here, module) not in SHARED_DATA:
                upward.append(f"{relative} imports {module}")
    assert not upward, "\n".join(upward)


def test_no_relative_imports() -> None:
    for path in package_root().rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            assert not (isinstance(node, ast.ImportFrom) and node.level > 0), f"{path}: relative import"


def test_scheduler_side_is_pure_python() -> None:
    """Scheduler and KV manager run under the simulator too: no arrays, no sockets, no clock of their own."""
    forbidden = {"numpy", "zmq", "socket", "asyncio", "time", "threading"}
    for floor in ("scheduler", "kvcache", "sampling"):
        for path in (package_root() / floor).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                names = (
                    [alias.name for alias in node.names]
                    if isinstance(node, ast.Import)
                    else [node.module or ""]
                    if isinstance(node, ast.ImportFrom)
                    else []
                )
                assert not forbidden & {name.split(".")[0] for name in names}, f"{path}: imports {names}"
