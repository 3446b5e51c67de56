"""Models by name: their parameters are those of the published tensors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rooftree.errors import ModelError
from rooftree.planner import models
from rooftree.planner.models import published_model, published_names, resolve_model

_TOTALS = Path(__file__).parents[1] / "checkpoint" / "published_configs.json"
TOTALS = {name: entry["parameters"] for name, entry in json.loads(_TOTALS.read_text()).items()}
OTHER_RELEASES = {"mistral-7b"}
"""The catalogue has v0.3, with a larger vocabulary."""


def known(name: str) -> bool:
    try:
        published_model(name)
    except ModelError:
        return False
    return True


NAMED = [name for name in TOTALS if name not in OTHER_RELEASES and known(name)]


@pytest.mark.parametrize("name", NAMED)
def test_parameters_are_the_published_ones(name: str) -> None:
    assert published_model(name).architecture.num_parameters == TOTALS[name]


def test_most_published_totals_are_held_against_the_catalogue() -> None:
    assert len(NAMED) >= 50


@pytest.mark.parametrize("name", published_names())
def test_every_model_of_the_catalogue_is_whole(name: str) -> None:
    architecture = published_model(name).architecture
    assert architecture.num_parameters >= architecture.num_parameters_active > 1e8
    assert architecture.weight_bytes() > 0
    assert architecture.kv_bytes_per_token() + architecture.state_bytes_per_sequence() > 0


@pytest.mark.parametrize("text", ["", "  "])
def test_an_empty_name_is_no_model(text: str) -> None:
    with pytest.raises(ModelError, match="empty"):
        resolve_model(text)


def test_a_name_that_is_served_is_its_file_or_else_its_published_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "model.gguf"
    monkeypatch.setattr(models, "find_pulled", lambda name: None)
    assert resolve_model("smollm2").name == "HuggingFaceTB/SmolLM2-135M"
    read = resolve_model("smollm2").architecture
    monkeypatch.setattr(models, "find_pulled", lambda name: file)
    monkeypatch.setattr(models, "_read_file", lambda path: read if path == file else None)
    served = resolve_model("smollm2")
    assert (served.name, served.architecture) == ("smollm2", read)


def test_a_typing_error_is_answered_with_near_names() -> None:
    with pytest.raises(ModelError, match=r"meta-llama/Llama-3\.1-8B"):
        resolve_model("Llama3.1-8BB")
