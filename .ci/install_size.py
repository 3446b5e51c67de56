"""Fails if the base install brings more than 200 MB besides pip and its friends."""

from __future__ import annotations

import importlib.metadata
import sys

LIMIT_MB = 200
NOT_OURS = {"pip", "setuptools", "wheel"}


def main() -> None:
    sizes = {}
    for dist in importlib.metadata.distributions():
        name = dist.metadata["Name"]
        if name.lower() not in NOT_OURS:
            paths = [path.locate() for path in dist.files or []]
            sizes[name] = sum(p.stat().st_size for p in paths if p.is_file()) / 1e6
    for name, size in sorted(sizes.items(), key=lambda item: -item[1])[:6]:
        print(f"{size:8.1f} MB  {name}")
    total = sum(sizes.values())
    print(f"{total:8.1f} MB  in all (limit {LIMIT_MB})")
    if total > LIMIT_MB:
        sys.exit("the base install has grown too large")


if __name__ == "__main__":
    main()
