"""The user's own files: devices that were measured, constants that were fitted."""

from __future__ import annotations

from pathlib import Path

import click


def user_folder() -> Path:
    """``rooftree`` in the user's folder for configuration (Linux: ``$XDG_CONFIG_HOME`` or ``~/.config``)."""
    return Path(click.get_app_dir("rooftree"))
