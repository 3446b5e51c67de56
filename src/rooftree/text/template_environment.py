"""The sandbox in which chat templates run, with the helpers that ``transformers`` gives them."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from rooftree.errors import ModelError
from rooftree.text.template_facts import TemplateFacts, inspect_template


class TemplateRefusalError(jinja2.TemplateError):
    """Raised by a template itself, through ``raise_exception``."""


def compile_template(source: str, now: Callable[[], datetime]) -> tuple[jinja2.Template, TemplateFacts]:
    """Compile a template for the sandbox, and look at what it reads.

    Raises:
        ModelError: the template is not valid jinja2; the message names the line.
    """
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[LoopControlExtension, _GenerationTag]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda layout: now().strftime(layout)
    try:
        return environment.from_string(source), inspect_template(environment.parse(source))
    except jinja2.TemplateError as error:
        line = f", line {error.lineno}" if isinstance(error, jinja2.TemplateSyntaxError) else ""
        raise ModelError(f"the model's chat template{line}: {error.message}") from error


class _GenerationTag(Extension):
    """``{% generation %}`` marks the assistant's text for training; here its body is rendered as it is."""

    def __init__(self, environment: jinja2.Environment) -> None:
        super().__init__(environment)
        self.tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Read up to ``{% endgeneration %}``."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as models were trained on: jinja2's own filter would escape it for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise TemplateRefusalError(message)
