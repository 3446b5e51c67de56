"""What a chat template reads, found by looking at its syntax tree and not by running it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from jinja2 import nodes


@dataclass(frozen=True, slots=True)
class TemplateFacts:
    """What matters for shaping messages.

    Attributes:
        names: every variable, attribute and literal key that occurs.
        iterates_content: it loops over the parts of a message's content.
        tests_string: it asks whether a content is a text, so it takes texts as well as parts.
        tests_none: it asks whether a content is null, so null and empty are different to it.
    """

    names: frozenset[str]
    iterates_content: bool
    tests_string: bool
    tests_none: bool


def inspect_template(tree: nodes.Template) -> TemplateFacts:
    """Read the facts off a parsed template."""
    aliases = {"content", *_aliases_of_content(tree)}

    def is_content(node: nodes.Node) -> bool:
        return _reads_content(node) or (isinstance(node, nodes.Name) and node.name in aliases)

    tests = [test.name for test in tree.find_all(nodes.Test) if is_content(test.node)]
    return TemplateFacts(
        names=frozenset(_names(tree)),
        iterates_content=any(is_content(_unwrapped(loop.iter)) for loop in tree.find_all(nodes.For)),
        tests_string="string" in tests,
        tests_none="none" in tests or any(_compares_with_none(node) for node in tree.find_all(nodes.Compare)),
    )


def _aliases_of_content(tree: nodes.Template) -> Iterator[str]:
    for assign in tree.find_all(nodes.Assign):
        if isinstance(assign.target, nodes.Name) and _reads_content(_unwrapped(assign.node)):
            yield assign.target.name


def _reads_content(node: nodes.Node) -> bool:
    """``message.content``, ``message['content']`` or ``message.get('content')``."""
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    if isinstance(node, nodes.Call) and isinstance(node.node, nodes.Getattr) and node.node.attr == "get":
        return any(isinstance(arg, nodes.Const) and arg.value == "content" for arg in node.args)
    return False


def _unwrapped(node: nodes.Node) -> nodes.Node:
    """The expression under filters and slices (``content | reverse``, ``content[1:]``)."""
    inner: nodes.Node | None = node
    while isinstance(inner, nodes.Filter) or (
        isinstance(inner, nodes.Getitem) and isinstance(inner.arg, nodes.Slice)
    ):
        inner = inner.node
    return node if inner is None else inner


def _compares_with_none(node: nodes.Compare) -> bool:
    others = [operand.expr for operand in node.ops]
    return _reads_content(node.expr) and any(isinstance(o, nodes.Const) and o.value is None for o in others)


def _names(tree: nodes.Template) -> Iterator[str]:
    for name in tree.find_all(nodes.Name):
        yield name.name
    for attribute in tree.find_all(nodes.Getattr):
        yield attribute.attr
    for constant in tree.find_all(nodes.Const):
        if isinstance(constant.value, str):
            yield constant.value
