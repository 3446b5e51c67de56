"""rooftree serve"""

from __future__ import annotations

import logging
import os
from typing import Any

import click

from rooftree.cli.engine_options import ByteSize, engine_options, take_engine_config
from rooftree.cli.main import STARTED
from rooftree.errors import ConfigError

API_KEY_VARIABLE = "ROOFTREE_API_KEY"

HELP = """Serve MODEL (default: smollm2) over the OpenAI API.

\b
  rooftree serve
  rooftree serve model.gguf --port 9000 --max-model-len 4096
  rooftree serve hf:Qwen/Qwen3-0.6B --host 0.0.0.0 --api-key SECRET
  curl localhost:8000/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{"messages": [{"role": "user", "content": "Hello!"}]}'

Stop with Ctrl-C or SIGTERM: running answers may end first (--shutdown-timeout); a second signal hurries them.
"""


@click.command(help=HELP)
@click.argument("model", default="smollm2")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 for all.")
@click.option(
    "--port", default=8000, show_default=True, type=click.IntRange(0, 65535), help="0: any free one."
)
@click.option(
    "--api-key", multiple=True, metavar="KEY", envvar=API_KEY_VARIABLE, help="Ask for it; may be repeated."
)
@click.option("--served-model-name", multiple=True, metavar="NAME", help="Name in the API; may be repeated.")
@engine_options(server=True)
@click.option(
    "--generation-config",
    type=click.Choice(["auto", "none"]),
    default="auto",
    show_default=True,
    help="Whether the model's advice on sampling applies where a request is silent.",
)
@click.option(
    "--shutdown-timeout",
    type=float,
    default=30.0,
    show_default=True,
    help="Seconds for running answers to end.",
)
@click.option(
    "--heartbeat-timeout",
    type=float,
    default=60.0,
    show_default=True,
    help="Seconds of the engine's silence after which /health fails.",
)
@click.option("--max-body-size", type=ByteSize(), default="16MiB", show_default=True, help="Largest request.")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="What is logged, to standard error.",
)
def command(model: str, log_level: str, api_key: tuple[str, ...], **values: Any) -> None:
    """See HELP."""
    from rooftree.engine.process import LOG_FORMAT
    from rooftree.server.config import ServerConfig
    from rooftree.server.lifecycle import serve

    if not api_key and API_KEY_VARIABLE in os.environ:
        raise ConfigError(f"${API_KEY_VARIABLE} is set, but empty; unset it to serve without a key")
    logging.basicConfig(level=log_level.upper(), format=LOG_FORMAT)
    engine = take_engine_config(model, values)
    names = values.pop("served_model_name")
    server = ServerConfig(api_keys=api_key, served_model_names=names, **values)
    raise SystemExit(serve(engine, server, STARTED))
