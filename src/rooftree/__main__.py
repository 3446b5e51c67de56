"""``python -m rooftree`` is ``rooftree``."""

from rooftree.cli.main import main

main()
