"""The JSON of a plan against its documented schema: every key is there, and no other."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rooftree.cli.plan import command

SCHEMA: dict[str, Any] = json.loads(
    files("rooftree.planner").joinpath("data", "plan.schema.json").read_text(encoding="utf-8")
)
TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "boolean": bool,
    "null": type(None),
}  # fmt: skip


def faults(value: Any, schema: dict[str, Any], at: str = "$") -> list[str]:
    """What breaks the schema: as much of JSON Schema as this one uses."""
    if "$ref" in schema:
        return faults(value, SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]], at)
    if "anyOf" in schema:
        tried = [faults(value, option, at) for option in schema["anyOf"]]
        return [] if [] in tried else min(tried, key=len)
    if "const" in schema or "enum" in schema:
        return [] if value in schema.get("enum", [schema.get("const")]) else [f"{at}: {value!r}"]
    expected = TYPES[schema["type"]]
    if not isinstance(value, expected) or (isinstance(value, bool) and schema["type"] != "boolean"):
        return [f"{at}: {value!r} is no {schema['type']}"]
    found: list[str] = []
    if schema["type"] == "array":
        for index, item in enumerate(value):
            found += faults(item, schema["items"], f"{at}[{index}]")
    if schema["type"] == "object":
        known, others = schema.get("properties", {}), schema["additionalProperties"]
        found += [f"{at}.{name} is missing" for name in schema.get("required", ()) if name not in value]
        for name, item in value.items():
            if name not in known and others is False:
                found.append(f"{at}.{name} is not documented")
            else:
                found += faults(item, known.get(name, others), f"{at}.{name}")
    return found


QUESTIONS = {
    "fits": ("Llama-3.1-8B", "--device", "H100 SXM", "--count", "2", "--price", "2", "--peak-factor", "4"),
    "promise": ("Llama-3.1-8B", "--device", "L40S", "--rate", "3", "--ttft", "1", "--percentile", "0.9"),
    "changed": ("Llama-3.1-70B", "--device", "H100 SXM", "--count", "1"),
    "experts": ("DeepSeek-V3", "--device", "H200 SXM", "--count", "8", "--concurrency", "256"),
    "no device": ("Llama-3.1-405B", "--device", "L4", "--count", "1"),
    "no link": ("Llama-3.1-70B", "--device", "Trainium2", "--tp", "2", "--count", "2"),
    "too long": ("Llama-3.1-8B", "--input", "10000000"),
    "too many": ("Llama-3.1-8B", "--concurrency", "1000000000"),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_every_plan_keeps_to_the_schema_and_to_itself(name: str) -> None:
    one, two = (CliRunner().invoke(command, [*QUESTIONS[name], "--json"]) for _ in range(2))
    assert one.exit_code == 0, one.output
    assert one.output == two.output
    document = json.loads(one.output, parse_constant=lambda constant: pytest.fail(constant))
    assert faults(document, SCHEMA) == []


def test_the_validator_finds_faults() -> None:
    document = json.loads(CliRunner().invoke(command, [*QUESTIONS["too long"], "--json"]).output)
    assert document["binding"] == "context"
    for change, word in (
        ({"verdict": 3}, "no string"),
        ({"fits": "yes"}, "no boolean"),
        ({"new": 1}, "not documented"),
        ({"schema": "rooftree-plan/2"}, "rooftree-plan/2"),
        ({"plan": {}}, "plan"),
    ):
        assert any(word in fault for fault in faults(document | change, SCHEMA))
    del document["moves"]
    assert faults(document, SCHEMA) == ["$.moves is missing"]


def test_the_schema_is_in_the_docs() -> None:
    text = (Path(__file__).parents[2] / "docs" / "planner.md").read_text(encoding="utf-8")
    assert SCHEMA["title"] in text
    assert "plan.schema.json" in text
    plan = SCHEMA["properties"]["plan"]["anyOf"][0]
    names = [*SCHEMA["properties"], *plan["properties"], *SCHEMA["properties"]["answers"]["properties"]]
    missing = [name for name in names if f"`{name}`" not in text and f".{name}`" not in text]
    assert missing == []
