"""Fails if an object for one instruction set defines a function that the linker may take for all of them.

A function that several objects define (inline, or made of a template) is kept once, whichever of them it was
compiled for: the whole library would then need that object's instructions. So the objects for AVX2 and
AVX-512 must define such functions in the namespace of their instruction set alone.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

SHARED = re.compile(r" [WwVu] (?P<name>.*)")
NAMESPACED = re.compile(r"\brooftree::(avx2|avx512|avx512_bf16)::|^DW\.ref\.")


def shared_functions(item: Path) -> list[str]:
    """What ``item`` defines weakly, outside the namespace of an instruction set."""
    listing = subprocess.run(["nm", "-C", item], check=True, capture_output=True, text=True).stdout
    names = (match["name"] for line in listing.splitlines() if (match := SHARED.search(line)))
    return sorted({name for name in names if not NAMESPACED.search(name)})


def main() -> None:
    objects = sorted(Path(sys.argv[1]).rglob("*avx*.o"))
    if not objects:
        sys.exit(f"no objects under {sys.argv[1]}")
    found = {item.name: names for item in objects if (names := shared_functions(item))}
    for name, functions in found.items():
        print(f"{name} shares with the rest of the library: {', '.join(functions)}")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
