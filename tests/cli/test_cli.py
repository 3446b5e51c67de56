"""The commands as a user types them."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, get_args

import pytest

from rigs.models import path_successor, successor_weights, tiny_spec, write_gguf_model
from rigs.tokenizer import tiny_tokenizer
from rooftree import __version__
from rooftree.engine.stats import Bound

ROOFTREE = (sys.executable, "-m", "rooftree")
SMALL = ("--threads", "1", "--kv-cache-memory", "2MiB")
WALK = (b"\n", b"One", b" two", b" \xc3", b"\xa9.")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Answers every chat with "One two é."; "z" is followed by "z" for ever."""
    tokenizer = tiny_tokenizer(512, [token for token in WALK if len(token) > 1])
    path = [*map(tokenizer.id_of, WALK), tokenizer.eos_token_id]
    spec = tiny_spec(max_position_embeddings=4096)
    weights = successor_weights(spec, path_successor(512, path))
    return write_gguf_model(
        tmp_path_factory.mktemp("model") / "tiny.gguf", spec, weights, tokenizer=tokenizer
    )


def rooftree(*arguments: Any, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*ROOFTREE, *map(str, arguments)],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | environment,
    )


@pytest.mark.parametrize(
    "command", ["", "serve", "run", "chat", "pull", "inspect", "bench", "bench engine", "version"]
)
def test_help_teaches(command: str) -> None:
    result = rooftree(*command.split(), "--help")
    assert (result.returncode, result.stderr) == (0, "")
    assert "Usage: rooftree" in result.stdout
    if command not in ("version", "bench"):
        assert f"\n    rooftree {command}" in result.stdout


def test_help_imports_next_to_nothing() -> None:
    code = (
        "import sys; from rooftree.cli.main import main\ntry: main()\nexcept SystemExit: print(*sys.modules)"
    )
    command = [sys.executable, "-c", code, "--help"]
    modules = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert not {"numpy", "msgspec", "zmq", "starlette", "uvicorn", "rich", "asyncio", "jinja2"} & set(modules)


def test_version() -> None:
    assert rooftree("version").stdout == f"rooftree {__version__}\n"


def test_run_streams_one_answer(model: Path) -> None:
    result = rooftree("run", model, "Count!", *SMALL)
    assert (result.returncode, result.stdout, result.stderr) == (0, "One two é.\n", "")


def test_run_reads_the_prompt_from_standard_input(model: Path) -> None:
    assert rooftree("run", model, "--raw", *SMALL, stdin="x\n").stdout == "One two é.\n"


def test_run_as_json(model: Path) -> None:
    result = rooftree("run", model, "--raw", "zzz", "--json", "--max-tokens", 5, *SMALL)
    facts = json.loads(result.stdout)
    assert facts["text"] == "zzzzz"
    assert facts["token_ids"] == [ord("z")] * 5
    assert facts["finish_reason"] == "length"
    assert facts["usage"] == {"prompt_tokens": 3, "completion_tokens": 5, "cached_tokens": 0}
    assert 0 < facts["timings"]["ttft_s"] < facts["timings"]["load_s"] < 60
    assert facts["timings"]["tpot_s"] > 0


def test_run_takes_sampling_flags(model: Path) -> None:
    stopped = rooftree("run", model, "--raw", "x\n", "--stop", "wo", "--json", "--system", "", *SMALL)
    assert stopped.returncode == 2
    stopped = rooftree("run", model, "--raw", "x\n", "--stop", "wo", "--json", *SMALL)
    assert json.loads(stopped.stdout)["text"] == "One t"
    refused = rooftree("run", model, "hi", "--top-p", 2, *SMALL)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.startswith("Error: top_p is 2.0; possible: ")


def test_chat_answers_line_by_line(model: Path) -> None:
    result = rooftree("chat", model, *SMALL, stdin="hello\n\nagain\n/reset\n/what\nonce more\n/exit\nnever\n")
    assert result.stdout == "One two é.\n" * 3
    assert (result.returncode, result.stderr) == (0, "commands: /reset, /exit\n")


def test_chat_says_when_the_conversation_is_too_long(model: Path) -> None:
    result = rooftree("chat", model, *SMALL, "--max-model-len", 64, stdin=f"{'long ' * 30}\nhi\n")
    assert result.stdout == "One two é.\n"
    assert "the context window is 64 tokens" in result.stderr
    assert "/reset begins anew" in result.stderr


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, *arguments: Any) -> None:
        pid, self._terminal = pty.fork()
        if pid == 0:
            os.execv(sys.executable, [*ROOFTREE, *map(str, arguments)])
        self.pid = pid
        self.seen = ""

    def expect(self, text: str, *, interrupt: bool = False) -> str:
        """Wait until ``text`` is shown; everything since the last call.

        ``interrupt`` presses Ctrl-C, and again each second: Python's line editor misses one that comes while
        it is about to wait.
        """
        deadline = time.monotonic() + 30
        while text not in self.seen:
            assert time.monotonic() < deadline, self.seen
            if interrupt:
                os.kill(self.pid, signal.SIGINT)
            while text not in self.seen and select.select([self._terminal], [], [], 1)[0]:
                self.seen += os.read(self._terminal, 4096).decode(errors="replace")
        before, _, self.seen = self.seen.partition(text)
        return before + text

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def end(self) -> int:
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        os.close(self._terminal)
        return status


def test_ctrl_c_stops_an_answer_and_not_the_chat(model: Path) -> None:
    terminal = Terminal("chat", model, *SMALL, "--ignore-eos")
    terminal.expect("> ")
    terminal.type("hello\n")
    terminal.expect("two é.")
    terminal.expect("[stopped]", interrupt=True)
    terminal.expect("> ")
    terminal.expect("/exit leaves", interrupt=True)
    terminal.expect("> ")
    terminal.type("/exit\n")
    assert terminal.end() == 0


def test_inspect(model: Path) -> None:
    facts = json.loads(rooftree("inspect", model, "--json").stdout)
    assert facts["family"] == "llama"
    assert facts["layers"] == 2
    kv_bytes = facts["kv_bytes_per_token"]
    assert (kv_bytes["fp16"], kv_bytes["fp32"]) == (2 * 2 * 2 * 16 * 2, 2 * 2 * 2 * 16 * 4)
    assert sum(facts["bytes_by_type"].values()) == facts["weight_bytes"] == 4 * facts["parameters"]
    assert "family" in rooftree("inspect", model).stdout


def test_inspect_after_quantising(model: Path) -> None:
    before = json.loads(rooftree("inspect", model, "--json").stdout)
    after = json.loads(rooftree("inspect", model, "--json", "--quantization", "q8_0").stdout)
    assert set(after["bytes_by_type"]) == {"Q8_0", "F32"}
    assert after["parameters"] == before["parameters"]
    assert after["weight_bytes"] < before["weight_bytes"] / 3


def test_bench_engine(model: Path) -> None:
    flags = ("--batch", "1,3", "--prompt-tokens", 20, "--output-tokens", 4, "--repeat", 1, *SMALL)
    results = json.loads(rooftree("bench", "engine", model, "--json", *flags).stdout)["results"]
    assert [result["batch"] for result in results] == [1, 3]
    for result in results:
        assert result["prefill_tokens_per_s"] > 0
        assert result["decode_tokens_per_s"] > 0
        assert 0 < result["python_share"] < 1
        assert result["predicted_step_s"] > 0
        assert result["bandwidth_fraction"] > 0
        assert result["bound"] in get_args(Bound)
    assert len(rooftree("bench", "engine", model, *flags).stdout.splitlines()) == 3


@pytest.mark.parametrize(
    "command", ["run MODEL hi", "chat MODEL", "bench engine MODEL", "serve MODEL --port 0"]
)
def test_the_environment_may_choose_the_instruction_set(model: Path, command: str) -> None:
    arguments = [model if word == "MODEL" else word for word in command.split()]
    result = rooftree(*arguments, *SMALL, ROOFTREE_ISA="sse9")
    assert (result.returncode, result.stdout) == (1, "")
    assert "--isa sse9 (or ROOFTREE_ISA): this machine and build run" in result.stderr
    assert "Traceback" not in result.stderr


def test_the_flag_overrides_the_environment(model: Path) -> None:
    for flags, isa in (((), "portable"), (("--isa", "portable"), "sse9"), ((), "")):
        result = rooftree("run", model, "--raw", "x\n", *SMALL, *flags, ROOFTREE_ISA=isa)
        assert (result.returncode, result.stdout, result.stderr) == (0, "One two é.\n", "")


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("run", "nothing.gguf", "hi"), 1, "nothing.gguf: there is no such file"),
        (("inspect", "nothing.gguf"), 1, "nothing.gguf: there is no such file"),
        (("serve", "nothing.gguf", "--port", "0"), 1, "nothing.gguf: there is no such file"),
        (("serve", "--block-size", "7"), 1, "--block-size must be a multiple of 16"),
        (("serve", "--kv-cache-memory", "2 parsecs"), 2, "is not a size such as 2GiB"),
        (("serve", "--port", "99999"), 2, "99999"),
        (("bench", "engine", "--batch", "1,x"), 2, "is not a list of batch sizes"),
        (("bench", "engine", "--max-num-seqs", "4"), 2, "No such option '--max-num-seqs'"),
        (("bench", "engine", "--enable-prefix-caching"), 2, "No such option '--enable-prefix-caching'"),
        (("run", "smollm2", "--max-tokens", "many"), 2, "many"),
        (("dance",), 2, "No such command 'dance'"),
    ],
)
def test_errors_are_one_clear_line(
    tmp_path: Path, arguments: tuple[str, ...], status: int, message: str
) -> None:
    result = rooftree(*arguments, ROOFTREE_CACHE=str(tmp_path), PIP_NO_INDEX="1")
    assert result.returncode == status
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_a_model_that_cannot_be_fetched_is_an_error_too(tmp_path: Path) -> None:
    for command in (("pull",), ("serve", "--port", "0")):
        result = rooftree(*command, ROOFTREE_CACHE=str(tmp_path), PIP_NO_INDEX="1", PIP_FIND_LINKS="")
        assert result.returncode == 1
        assert "cannot be downloaded" in result.stderr
        assert "Traceback" not in result.stderr
