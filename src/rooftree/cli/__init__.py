"""The command ``rooftree``: one thin file per subcommand."""
