"""Where downloaded models are kept."""

from __future__ import annotations

import os
from pathlib import Path


def default_cache_dir() -> Path:
    """``$ROOFTREE_CACHE``, or ``rooftree`` in ``$XDG_CACHE_HOME`` or ``~/.cache``."""
    own = os.environ.get("ROOFTREE_CACHE")
    if own:
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "rooftree"
