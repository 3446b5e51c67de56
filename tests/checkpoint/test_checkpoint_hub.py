"""``hf:org/name`` against a hub that the test itself serves."""

from __future__ import annotations

import socket

import pytest

from rigs.hub import COMMIT, serve_hub
from rigs.models import random_weights, tiny_spec, write_hf_model
from rooftree.checkpoint.hub import HubModel, parse_hub_name
from rooftree.checkpoint.open import open_checkpoint
from rooftree.errors import ModelError

SPEC = tiny_spec("llama", vocab_size=300, num_layers=1)


@pytest.fixture(autouse=True)
def _quiet(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY", True)


@pytest.fixture
def hub(tmp_path):
    folder = write_hf_model(tmp_path / "served", SPEC, random_weights(SPEC), shards=2)
    (folder / "chat_template.jinja").write_text("from the hub")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    for unwanted in ("pytorch_model.bin", "consolidated.safetensors", "README.md", "onnx/model.onnx"):
        (folder / unwanted).parent.mkdir(exist_ok=True)
        (folder / unwanted).write_text("x" * 1000)
    with serve_hub(folder, revisions=("main", "v1.0", "pr/7")) as server:
        yield server


def open_from(hub, tmp_path, model="hf:org/name"):
    return open_checkpoint(model, hub_endpoint=hub.endpoint, hub_cache_dir=tmp_path / "cache")


def test_a_model_is_downloaded_once_and_only_the_files_it_needs(hub, tmp_path):
    checkpoint = open_from(hub, tmp_path)
    assert (checkpoint.spec, checkpoint.name, checkpoint.format) == (SPEC, "org/name", "safetensors")
    assert checkpoint.text.chat_template == "from the hub"
    fetched = {path.rsplit("/", 1)[1] for path in hub.requests if path.startswith("GET /org/name/")}
    assert fetched == {
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "tool_use.jinja",
        "model.safetensors.index.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    }
    hub.requests.clear()
    assert open_from(hub, tmp_path).spec == SPEC
    assert not [path for path in hub.requests if path.startswith("GET /org/name/")]


@pytest.mark.parametrize("revision", ["v1.0", "pr/7", COMMIT])
def test_a_revision(hub, tmp_path, revision):
    assert open_from(hub, tmp_path, f"hf:org/name@{revision}").spec == SPEC


def test_a_cached_model_needs_no_network(hub, tmp_path):
    open_from(hub, tmp_path)
    hub.shutdown()
    hub.server_close()
    assert open_from(hub, tmp_path).spec == SPEC


def refused(message, hub, tmp_path, model="hf:org/name"):
    with pytest.raises(ModelError, match=message) as caught:
        open_from(hub, tmp_path, model)
    assert str(caught.value).startswith("hf:org/")


def test_what_is_not_there(hub, tmp_path):
    refused(r"hf:org/other: .*no such model", hub, tmp_path, "hf:org/other")
    refused(r"hf:org/name@v9: .*no such revision", hub, tmp_path, "hf:org/name@v9")
    hub.error_code = "GatedRepo"
    refused(r"hf:org/name: .*grant access", hub, tmp_path)


def test_no_network(tmp_path):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(ModelError, match=r"hf:org/name: cannot be downloaded: .*[Cc]onnect"):
            open_checkpoint("hf:org/name", hub_endpoint=endpoint, hub_cache_dir=tmp_path)


def test_a_download_cut_half_way_is_not_taken_for_a_model(hub, tmp_path):
    hub.broken.add("model-00002-of-00002.safetensors")
    refused(r"hf:org/name: cannot be downloaded", hub, tmp_path)
    hub.broken.clear()
    assert open_from(hub, tmp_path).spec == SPEC


def test_a_repository_without_a_model_names_what_is_missing(tmp_path):
    served = tmp_path / "served"
    served.mkdir()
    (served / "config.json").write_text("{}")
    with serve_hub(served) as hub, pytest.raises(ModelError, match=r"config.json: .*model_type is missing"):
        open_from(hub, tmp_path)


def test_names():
    assert parse_hub_name("hf:org/name") == HubModel("org/name", None)
    assert parse_hub_name("hf:my-org/Name_1.5@refs/pr/3") == HubModel("my-org/Name_1.5", "refs/pr/3")
    for bad in ("hf:", "hf:name", "hf:a/b/c", "hf:org/name@", "hf:org/na me", "hf:org/", "hf:/x"):
        with pytest.raises(ModelError, match="is written hf:org/name"):
            parse_hub_name(bad)


def test_a_name_that_the_hub_could_not_have(hub, tmp_path):
    with pytest.raises(ModelError, match=r"hf:../x: cannot be downloaded"):
        open_from(hub, tmp_path, "hf:../x")
    assert hub.requests == []
