"""The pages say what the code does: links, files, names, commands, flags, fields, metrics, formats."""

from __future__ import annotations

import asyncio
import fnmatch
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePosixPath
from typing import get_args

import click
import httpx
import pytest

from rooftree.checkpoint.base import DType
from rooftree.checkpoint.gguf_model import ARCHITECTURES as GGUF_ARCHITECTURES
from rooftree.checkpoint.hf_config import ARCHITECTURES as HF_ARCHITECTURES
from rooftree.cli.main import COMMANDS, cli
from rooftree.engine.config import KVCacheChoice
from rooftree.kernels.cpu import FORMAT_CODES
from rooftree.server.app import ENDPOINTS, build_app
from rooftree.server.config import ServerConfig
from rooftree.server.fields import CHAT_OFF_VALUES, COMPLETION_OFF_VALUES
from rooftree.server.metrics import Metrics
from rooftree.server.protocol import (
    ChatCompletionRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
from rooftree.server.state import ServerState
from rooftree.specs.model import Family

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")]
)
SOURCES = ("src", "native", "tests", "benchmarks", "docs", "examples", ".ci")
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def text_of(name: str) -> str:
    return (ROOT / name).read_text()


def without_fences(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def code_spans(text: str) -> list[str]:
    """What stands in backticks outside of code blocks."""
    return re.findall(r"`([^`\n]+)`", without_fences(text))


def shell_lines(text: str) -> list[str]:
    """Lines of the shell code blocks, continued ones joined."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]


def table_rows(text: str, heading: str) -> list[list[str]]:
    """Cells of the rows of all tables between a heading and the next heading of the same depth or above."""
    depth = heading.index(" ")
    section = text[text.index(f"\n{heading}\n") + len(heading) + 2 :]
    end = re.search(rf"^#{{1,{depth}}} ", section, flags=re.MULTILINE)
    lines = section[: end.start() if end else None].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return [
        cells for i, cells in enumerate(rows) if not set("".join(cells)) <= set("- ") and not _heads(rows, i)
    ]


def _heads(rows: list[list[str]], index: int) -> bool:
    return index + 1 < len(rows) and set("".join(rows[index + 1])) == {"-"}


# -- links, files, names


def slug(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    kept = re.sub(r"[^\w\- ]", "", heading.replace("`", "").strip().lower())
    return kept.replace(" ", "-")


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", without_fences(page.read_text())):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        headings = re.findall(r"^#+ (.+)$", without_fences(file.read_text()), re.MULTILINE) if anchor else []
        if not file.exists() or (anchor and anchor not in map(slug, headings)):
            broken.append(target)
    assert not broken


@cache
def paths() -> tuple[str, ...]:
    """All files and folders of the project, with a slash in front, folders with one behind."""
    found = [path for folder in SOURCES for path in (ROOT / folder, *(ROOT / folder).rglob("*"))]
    found += [path for path in ROOT.iterdir() if path.is_file()]
    return tuple(f"/{path.relative_to(ROOT).as_posix()}{'/' * path.is_dir()}" for path in found)


@each_page
def test_files_that_are_named_exist(page: Path) -> None:
    missing = []
    for span in code_spans(page.read_text()):
        is_file = re.fullmatch(r"[\w./*-]+\.(py|pyi|h|cpp|sh|md|txt)", span)
        is_folder = re.fullmatch(r"[\w./-]*\w/", span)
        pattern = f"*/{PurePosixPath(span)}{'/' if is_folder else ''}"
        if (is_file or is_folder) and not any(fnmatch.fnmatch(path, pattern) for path in paths()):
            missing.append(span)
    assert not missing


def test_every_package_has_its_floor() -> None:
    packages = {path.parent.name for path in (ROOT / "src" / "rooftree").glob("*/__init__.py")}
    rows = table_rows(text_of("docs/architecture.md"), "## Floors")
    assert {package.strip("`") for _, package, *_ in rows} == packages


@cache
def test_names() -> frozenset[str]:
    files = (ROOT / "tests").rglob("test_*.py")
    return frozenset(name for file in files for name in re.findall(r"def (test_\w+)", file.read_text()))


test_names.__test__ = False  # type: ignore[attr-defined]


@each_page
def test_tests_that_are_named_exist(page: Path) -> None:
    named = {span for span in code_spans(page.read_text()) if re.fullmatch(r"test_\w+", span)}
    assert named <= test_names()


def test_bounds_are_those_of_the_tests() -> None:
    """A bound written as 2e-6 stands in a file that defines a test which its row names."""
    files = [file.read_text() for file in (ROOT / "tests").rglob("test_*.py")]
    named: list[str] = []
    for _, bounds, tests in table_rows(text_of("docs/kernels.md"), "## How exact"):
        named = (named if tests.startswith("the same") else []) + code_spans(tests)
        homes = "".join(text for text in files if any(f"def {name}(" in text for name in named))
        assert [bound for bound in re.findall(r"\d+e-\d+", bounds) if bound not in homes] == []


@cache
def words_of_the_code() -> frozenset[str]:
    folders = (ROOT / "src", ROOT / "native", ROOT / "tests" / "rigs")
    files = [path for folder in folders for path in folder.rglob("*") if path.suffix in (".py", ".h", ".cpp")]
    return frozenset(word for file in files for word in re.findall(r"\w+", file.read_text()))


@each_page
def test_classes_and_functions_that_are_named_exist(page: Path) -> None:
    spans = [span for span in code_spans(page.read_text()) if not span.endswith(".txt")]
    named = {span for span in spans if re.fullmatch(r"_?[A-Z]\w+((\.|::)\w+)*", span)}
    unknown = {name for name in named if not set(re.findall(r"\w+", name)) <= words_of_the_code()}
    assert not unknown


# -- commands and flags


def commands_in(line: str) -> Iterator[list[str]]:
    """Arguments of every ``rooftree ...`` in a line of shell."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    for token in (*lexer, ";"):
        if set(token) <= set("();<>|&"):
            if words[:1] == ["rooftree"]:
                yield words[1:]
            words = []
        else:
            words.append(token)


def resolve(arguments: list[str]) -> tuple[click.Command, list[str]]:
    """The command that arguments lead to, and what is left of them."""
    command: click.Command = cli
    while isinstance(command, click.Group) and arguments and arguments[0] != "--help":
        name, *arguments = arguments
        found = command.get_command(click.Context(command), name)
        if found is None and "model" in command.commands:  # `rooftree plan MODEL`
            return command.commands["model"], [name, *arguments]
        assert found is not None, f"there is no command {name!r}"
        command = found
    return command, arguments


def leaves(command: click.Command) -> Iterator[click.Command]:
    """Commands that do something, below and including this one."""
    if not isinstance(command, click.Group):
        yield command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        assert below is not None
        yield from leaves(below)


def flags_of(command: click.Command) -> set[str]:
    return {"--help", *(flag for param in command.params for flag in (*param.opts, *param.secondary_opts))}


@each_page
def test_commands_that_are_shown_parse(page: Path) -> None:
    for line in shell_lines(page.read_text()):
        for arguments in commands_in(line):
            command, rest = resolve(arguments)
            command.make_context("rooftree", rest)


@each_page
def test_commands_within_sentences_exist(page: Path) -> None:
    for span in code_spans(page.read_text()):
        words = span.split()
        if words[0] != "rooftree" or "COMMAND" in words:
            continue
        command, rest = resolve(words[1:])
        assert {word for word in rest if word.startswith("--")} <= flags_of(command), span


def test_every_command_is_described_somewhere() -> None:
    shown = "\n".join(page.read_text() for page in PAGES)
    assert [name for name in COMMANDS if f"rooftree {name}" not in shown] == []


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent.name == "docs"], ids=lambda p: p.name)
def test_flags_within_sentences_exist(page: Path) -> None:
    known = {flag for command in leaves(cli) for flag in flags_of(command)}
    named = {flag for span in code_spans(page.read_text()) for flag in re.findall(r"--[a-z][a-z-]*", span)}
    assert named <= known


def test_the_flags_of_serve_are_all_described_with_their_defaults() -> None:
    serve = {
        param.opts[0]: param for param in resolve(["serve"])[0].params if isinstance(param, click.Option)
    }
    described: dict[str, str] = {}
    for flags, default, *_ in table_rows(text_of("docs/operations.md"), "## Flags of serve"):
        names = re.findall(r"--[a-z-]+", flags)
        described |= dict.fromkeys(names, default if len(names) == 1 else "")
    assert set(described) == set(serve)
    for name, said in described.items():
        default = serve[name].default
        if said and type(default) in (int, float, str):
            assert said == (f"{default:g}" if isinstance(default, float) else str(default)), name


def test_the_commands_that_ci_runs_stand_in_the_readme() -> None:
    lines = text_of("README.md").splitlines()
    for command in ("pip install . && rooftree serve", "pip install '.[test]' && pytest"):
        assert [line for line in lines if command in line] == [command]


# -- the API and the metrics


def test_every_route_is_described() -> None:
    cells = [row[0] for row in table_rows(text_of("docs/api.md"), "## Routes")]
    described = [tuple(span.split()) for cell in cells for span in code_spans(cell)]
    assert sorted(described) == sorted((method, path.replace(":path", "")) for method, path, _ in ENDPOINTS)


def test_every_field_is_described() -> None:
    page = text_of("docs/api.md")
    requests = (ChatCompletionRequest, CompletionRequest, TokenizeRequest, DetokenizeRequest)
    fields = {field for request in requests for field in request.__struct_fields__}
    assert fields | set(CHAT_OFF_VALUES) | set(COMPLETION_OFF_VALUES) <= set(code_spans(page))
    rows = table_rows(page, "## Fields of both completion routes")
    honoured = {span for row in rows if len(row) == 3 for span in code_spans(row[0])}
    both = set(ChatCompletionRequest.__struct_fields__) & set(CompletionRequest.__struct_fields__)
    without_effect = set(
        code_spans(page[page.index("### Accepted without effect") :].partition("\n\n###")[0])
    )
    assert honoured | without_effect == both - {"logprobs"}
    assert not honoured & without_effect


def test_every_field_of_a_missing_feature_is_described() -> None:
    rows = table_rows(text_of("docs/api.md"), "### Refused, unless they ask for nothing")
    described = {routes: set(code_spans(fields)) for routes, fields in rows}
    assert described["both"] | described["plain"] == set(COMPLETION_OFF_VALUES)
    assert described["both"] | described["chat"] == set(CHAT_OFF_VALUES)


def scrape() -> str:
    """/metrics of the application itself, its engine still loading."""
    app = build_app(ServerState(ServerConfig(), "tiny", Metrics("tiny")))

    async def get() -> str:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return (await client.get("/metrics")).text

    return asyncio.run(get())


def test_every_metric_is_described_and_no_other() -> None:
    types = dict(re.findall(r"^# TYPE (\S+) (\w+)$", scrape(), re.MULTILINE))
    served = {
        (name.removeprefix("rooftree:"), kind, name.replace("rooftree:", "vllm:") in types)
        for name, kind in types.items()
        if name.startswith("rooftree:")
    }
    assert len(types) == len(served) + sum(alias for _, _, alias in served)
    rows = table_rows(text_of("docs/operations.md"), "## Metrics")
    assert {(name.strip("`"), kind, alias == "yes") for name, kind, alias, _ in rows} == served


@each_page
def test_series_within_sentences_exist(page: Path) -> None:
    served = scrape()
    named = {
        name for span in code_spans(page.read_text()) for name in re.findall(r"(?:rooftree|vllm):\w+", span)
    }
    assert [name for name in named - {"rooftree:NAME", "vllm:NAME"} if f" {name} " not in served] == []


# -- models


@pytest.mark.parametrize("page", ["README.md", "docs/checkpoint.md", "CHANGELOG.md"])
def test_every_storage_format_is_named(page: str) -> None:
    assert set(get_args(DType)) <= set(re.findall(r"\w+", text_of(page)))


def test_the_readme_tells_formats_that_run_from_those_that_do_not() -> None:
    rows = table_rows(text_of("README.md"), "## What works, what does not yet")
    works, not_yet = next(
        (set(re.findall(r"\w+", cell)) for cell in row[1:]) for row in rows if row[0] == "weights"
    )
    assert {dtype for dtype in get_args(DType) if dtype in works} == set(FORMAT_CODES)
    assert {dtype for dtype in get_args(DType) if dtype in not_yet} == set(get_args(DType)) - set(
        FORMAT_CODES
    )


@pytest.mark.parametrize("page", ["README.md", "docs/operations.md", "CHANGELOG.md"])
def test_every_kv_format_and_family_is_named(page: str) -> None:
    words = set(re.findall(r"\w+", text_of(page).lower()))
    assert set(get_args(KVCacheChoice)) <= words
    assert page == "docs/operations.md" or set(get_args(Family)) <= words


def test_every_architecture_is_named() -> None:
    page = text_of("docs/checkpoint.md")
    assert {*GGUF_ARCHITECTURES, *HF_ARCHITECTURES} <= set(code_spans(page))
