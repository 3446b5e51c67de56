"""The examples run, as they stand, on a tiny model that answers every chat and every line "One two é."."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rigs.models import path_successor, successor_weights, tiny_spec, write_gguf_model
from rigs.tokenizer import tiny_tokenizer

EXAMPLES = Path(__file__).parents[1] / "examples"
WALK = (b"\n", b"One", b" two", b" \xc3", b"\xa9.")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """After a line break "One two é." and the end; any other letter is followed by itself for ever."""
    tokenizer = tiny_tokenizer(512, [token for token in WALK if len(token) > 1])
    path = [*map(tokenizer.id_of, WALK), tokenizer.eos_token_id]
    spec = tiny_spec(max_position_embeddings=512)
    weights = successor_weights(spec, path_successor(512, path))
    return write_gguf_model(tmp_path_factory.mktemp("model") / "m.gguf", spec, weights, tokenizer=tokenizer)


@pytest.fixture(scope="module")
def url(model: Path) -> Iterator[str]:
    """A real server with this model."""
    flags = ["--port", "0", "--threads", "1", "--kv-cache-memory", "2MiB"]
    command = [sys.executable, "-m", "rooftree", "serve", str(model), *flags]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        ready = next((m for line in process.stderr if (m := re.search(r"is ready on (\S+)", line))), None)
        assert ready is not None
        yield ready[1]
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.kill()
        process.stderr.close()


def run(*command: str | Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run([*map(str, command)], input=stdin, capture_output=True, text=True, timeout=60)


def test_offline_batch(model: Path) -> None:
    prompts = "zz\nyyyy\n\nx\n"
    command = (sys.executable, EXAMPLES / "offline_batch.py", model, "--max-tokens", "3", "--threads", "1")
    result = run(*command, stdin=prompts)
    assert result.returncode == 0, result.stderr
    answers = [json.loads(line) for line in result.stdout.splitlines()]
    assert [answer["prompt"] for answer in answers] == ["zz", "yyyy", "x"]
    assert [answer["text"] for answer in answers] == ["zzz", "yyy", "xxx"]
    assert {answer["finish_reason"] for answer in answers} == {"length"}
    assert "9 tokens in" in result.stderr


def test_offline_batch_tells_what_is_wrong() -> None:
    result = run(sys.executable, EXAMPLES / "offline_batch.py", "nowhere.gguf", stdin="a\n")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("error: nowhere.gguf: there is no such file")


def test_openai_chat_answers_one_question(url: str) -> None:
    result = run(sys.executable, EXAMPLES / "openai_chat.py", "Hello?", "--base-url", f"{url}/v1")
    assert (result.returncode, result.stdout) == (0, "One two é."), result.stderr
    assert re.fullmatch(r"\n\[\d+ \+ 5 tokens\]\n", result.stderr)


def test_openai_chat_holds_a_conversation(url: str) -> None:
    command = (sys.executable, EXAMPLES / "openai_chat.py", "--base-url", f"{url}/v1")
    result = run(*command, stdin="Hello?\nAnd now?\n")
    assert (result.returncode, result.stdout.count("One two é.")) == (0, 2), result.stderr


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl_reaches_every_route(url: str) -> None:
    result = run("sh", EXAMPLES / "curl.sh", url)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("\n== ") == 10
    assert '"status":"ready"' in result.stdout
    assert "data: [DONE]" in result.stdout
    assert "rooftree:generation_tokens_total{" in result.stdout
