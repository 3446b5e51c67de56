"""Chat templates: published styles, message shapes, refusals, the sandbox (cases 13 and 14)."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest
from chat_templates import (
    CHATML,
    FIRST_PART,
    LLAMA3,
    MISTRAL,
    NULL_MEANS_CALL,
    PARTS,
    QWEN3,
    TEXT_OR_PARTS,
)
from hypothesis import given
from hypothesis import strategies as st

from rooftree.errors import ModelError, RequestError
from rooftree.text.chat_template import ChatTemplate

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
ALL = {"chatml": CHATML, "llama3": LLAMA3, "mistral": MISTRAL, "qwen3": QWEN3}
ALL |= {"parts": PARTS, "text or parts": TEXT_OR_PARTS, "first part": FIRST_PART, "null": NULL_MEANS_CALL}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"city": "Zürich <é>"}}}


def render(source: str | None, messages: Any, /, **options: Any) -> str:
    return ChatTemplate(source, TOKENS).render(messages, **options)


def refused(source: str | None, messages: Any, /, **options: Any) -> str:
    """The refusal's message; it must be a 400 that names the field."""
    with pytest.raises(RequestError) as refusal:
        render(source, messages, **options)
    assert refusal.value.status == 400
    assert refusal.value.param is not None
    return refusal.value.message


def say(role: str, content: Any, **fields: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **fields}


def parts(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


def call(name: str = "weather", arguments: Any = '{"city": "Zürich"}') -> dict[str, Any]:
    return {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}


# Published styles


def test_chatml() -> None:
    messages = [say("system", "Be brief."), say("user", "Hi")]
    assert render(CHATML, messages) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert not render(CHATML, messages, add_generation_prompt=False).endswith("assistant\n")


def test_llama3() -> None:
    messages = [say("user", "  Hi "), say("assistant", None, tool_calls=[call()]), say("tool", "9 °C")]
    header = "<|start_header_id|>{}<|end_header_id|>\n\n".format
    assert render(LLAMA3, messages) == (
        f"<s>{header('user')}Hi<|eot_id|>"
        f'{header("assistant")}{{"name": "weather", "parameters": {{"city": "Zürich"}}}}<|eot_id|>'
        f"{header('tool')}9 °C<|eot_id|>{header('assistant')}"
    )
    assert refused(LLAMA3, [say("assistant", None, tool_calls=[call(), call()])]) == (
        "One tool call at a time, please."
    )


def test_mistral_refuses_in_its_own_words() -> None:
    messages = [say("user", "a"), say("assistant", "b"), say("user", "c")]
    assert render(MISTRAL, messages) == "<s>[INST] a [/INST] b</s>[INST] c [/INST]"
    assert refused(MISTRAL, [say("system", "a")]) == "This model takes no system message."
    assert "Turns must go" in refused(MISTRAL, [say("user", "a"), say("user", "b")])


def test_qwen3_with_tools() -> None:
    messages = [
        say("system", "Help."),
        say("user", "Weather?"),
        say("assistant", "<think>hm</think>\n\nLooking.", tool_calls=[call(), call(arguments="")]),
        say("tool", "9 °C", tool_call_id="call_1"),
    ]
    prompt = render(QWEN3, messages, tools=[WEATHER], enable_thinking=False)
    assert prompt == (
        "<|im_start|>system\nHelp.\n\n<tools>\n"
        '{"type": "function", "function": {"name": "weather", "parameters": {"city": "Zürich <é>"}}}\n'
        "</tools><|im_end|>\n<|im_start|>user\nWeather?<|im_end|>\n<|im_start|>assistant\nLooking.\n"
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "weather", "arguments": {}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\n9 °C\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )


# Message shapes


@pytest.mark.parametrize("style", ALL)
@pytest.mark.parametrize("shape", ["text", "one part", "two parts"])
def test_every_text_of_every_shape_is_in_the_prompt_once(style: str, shape: str) -> None:
    roles = ["user", "assistant", "user"] if style == "mistral" else ["system", "user", "assistant", "user"]
    markers = [[f"m{index}a", f"m{index}b"] for index in range(len(roles))]
    shapes = {"text": lambda m: m[0], "one part": lambda m: parts(m[0]), "two parts": lambda m: parts(*m)}
    messages = [say(role, shapes[shape](marks)) for role, marks in zip(roles, markers, strict=True)]
    prompt = render(ALL[style], messages)
    for first, second in markers:
        assert prompt.count(first) == 1
        assert prompt.count(second) == (shape == "two parts")


@pytest.mark.parametrize("style", ["chatml", "qwen3", "llama3", "text or parts", "parts"])
@pytest.mark.parametrize("content", ["r1", parts("r1")])
def test_tool_results_and_names_reach_the_template(style: str, content: Any) -> None:
    result = say("tool", content, tool_call_id="c", name="f")
    assert render(ALL[style], [say("user", "q"), result]).count("r1") == 1
    named = "{% for m in messages %}{{ m.name }}/{{ m.tool_call_id }}/{{ m.content }}{% endfor %}"
    assert render(named, [say("tool", "r", tool_call_id="c", name="f")]) == "f/c/r"


def test_parts_are_joined_by_line_breaks_for_a_template_that_takes_texts() -> None:
    assert "one\ntwo<" in render(CHATML, [say("user", parts("one", "two"))])
    assert render(PARTS, [say("user", parts("one", "two"))]) == "<user>onetwo</>"
    assert render(PARTS, [say("user", "one")]) == "<user>one</>"
    assert (
        render(TEXT_OR_PARTS, [say("user", "one"), say("user", parts("a", "b"))]) == "<user>one</><user>ab</>"
    )


@pytest.mark.parametrize("style", [name for name in ALL if name != "mistral"])
@pytest.mark.parametrize("content", [None, "", []])
def test_nothing_is_said(style: str, content: Any) -> None:
    prompt = render(ALL[style], [say("user", "q"), say("assistant", content), say("user", "r")])
    assert "None" not in prompt
    assert "q" in prompt
    assert "r" in prompt


@pytest.mark.parametrize("message", [say("assistant", None), say("assistant", ""), {"role": "assistant"}])
def test_tool_calls_without_a_text_are_calls_whatever_stands_for_nothing(message: dict[str, Any]) -> None:
    turns = [say("user", "q"), {**message, "tool_calls": [call()]}]
    assert render(NULL_MEANS_CALL, turns) == '<user>q</>[weather {"city": "Zürich"}]'
    assert '"arguments": {"city": "Zürich"}' in render(QWEN3, turns)


@pytest.mark.parametrize("arguments", [None, "", "  ", "{}", {}])
def test_calls_without_arguments(arguments: Any) -> None:
    turns = [say("user", "q"), say("assistant", None, tool_calls=[call(arguments=arguments)])]
    assert '"arguments": {}' in render(QWEN3, turns)


def test_fields_that_are_null_are_as_if_absent() -> None:
    answer = say("assistant", "a", tool_calls=None, refusal=None, function_call=None)
    assert "a<|eot_id|>" in render(LLAMA3, [say("user", "q"), answer])
    assert "a<|eot_id|>" in render(LLAMA3, [say("user", "q"), say("assistant", "a", tool_calls=[])])


# Refusals


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ([], "at least one"),
        (["hi"], r"messages[0] must be an object"),
        ([{"content": "hi"}], "messages[0].role"),
        ([say("", "hi")], "messages[0].role"),
        ([say("user", "a"), {"role": "user"}], "messages[1].content is missing"),
        ([say("user", 7)], "messages[0].content must be"),
        ([say("user", {"type": "text", "text": "a"})], "messages[0].content must be"),
        ([say("user", ["a"])], "messages[0].content[0] must be an object"),
        ([say("user", [{"type": "image_url"}])], "'image_url' are not supported"),
        ([say("user", [{"type": "text"}])], "messages[0].content[0].text must be"),
        ([say("assistant", None, tool_calls="x")], "messages[0].tool_calls must be a list"),
        ([say("assistant", None, tool_calls=["x"])], "messages[0].tool_calls[0] must have a function"),
        ([say("assistant", None, tool_calls=[{"function": {}}])], "must have a function with a name"),
        ([say("assistant", None, tool_calls=[call(arguments="{")])], "arguments is not JSON"),
        ([say("assistant", None, tool_calls=[call(arguments="[" * 100_000)])], "arguments is not JSON"),
        (
            [say("assistant", None, tool_calls=[call(arguments='{"a": ' + "9" * 5000 + "}")])],
            "arguments is not",
        ),
        ([say("assistant", None, tool_calls=[call(arguments="[1]")])], "must be a JSON object, not list"),
        ([say("assistant", None, tool_calls=[call(arguments=3)])], "must be a JSON object, not int"),
        ([say("assistant", None, function_call={"name": "f"})], "function_call is not supported"),
    ],
)
def test_messages_that_are_not_legal_are_refused_with_their_place(messages: Any, problem: str) -> None:
    assert problem in refused(QWEN3, messages)


def test_no_template() -> None:
    message = refused(None, [say("user", "a")])
    assert "no chat template" in message
    assert "/v1/completions" in message


def test_a_role_that_the_template_leaves_out_is_refused() -> None:
    message = refused(QWEN3, [say("user", "a"), say("developer", "b")])
    assert "messages[1]" in message
    assert "'developer'" in message


def test_a_text_left_out_is_noticed_even_if_the_same_text_is_elsewhere() -> None:
    assert "messages[0]" in refused(QWEN3, [say("developer", "same"), say("user", "same")])


def test_texts_that_a_template_changes_are_not_left_out() -> None:
    escaped = "{% for m in messages %}{{ m.content | tojson }}{% endfor %}"
    assert render(escaped, [say("user", 'say "é"\n')]) == json.dumps('say "é"\n', ensure_ascii=False)
    backwards = "{% for m in messages | reverse %}{{ m.content }};{% endfor %}"
    assert render(backwards, [say("user", "a"), say("user", "b")]) == "b;a;"


def test_tools_and_tool_calls_without_a_place_are_refused() -> None:
    with pytest.raises(RequestError, match="no place for tools") as refusal:
        render(CHATML, [say("user", "a")], tools=[WEATHER])
    assert refusal.value.param == "tools"
    assert "no place for tool calls" in refused(CHATML, [say("assistant", "", tool_calls=[call()])])
    assert render(CHATML, [say("user", "a")], tools=[])


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].content + 1 }}",
        "{{ messages[5].content.x }}",
        "{{ nothing.at.all }}",
        "{{ 1 / 0 }}",
        "{{ nothing | tojson }}",
        "{% for i in range(100000000) %}{% endfor %}",
    ],
)
def test_a_template_that_fails_on_the_messages_is_a_refusal(source: str) -> None:
    assert "cannot render these messages" in refused(source, [say("user", "a")])


@pytest.mark.parametrize(
    "source", ["{% for %}", "{{ a", "{% endfor %}", "{% nonsense %}", "{{ a | no_such_filter }}"]
)
def test_a_template_that_is_not_jinja_is_refused_at_start(source: str) -> None:
    with pytest.raises(ModelError, match="chat template, line 2"):
        ChatTemplate("x\n" + source, {})


# Sandbox and helpers


@given(st.text(max_size=30))
def test_what_is_in_a_message_is_never_run(text: str) -> None:
    for content in (text, "{{ 1 + 1 }}" + text, "{% raw %}" + text, "{# " + text):
        assert render("{{ messages[0].content }}", [say("user", content)]) == content


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ messages.__class__ }}",
        "{{ (messages[0] | attr('__class__')).__mro__ }}",
        "{{ '{0.__class__.__mro__}'.format(messages) }}",
        "{{ messages[0].content.format_map({'a': messages}).__class__.__base__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__globals__['__builtins__'] }}",
        "{{ messages.append('x') }}",
        "{{ messages[0].update({'content': 'x'}) }}",
        "{% set ns = namespace() %}{% set ns.__class__ = 'x' %}{{ ns.__class__.__mro__ }}",
        "{% include 'etc/passwd' %}",
        "{% import 'os' as os %}{{ os }}",
    ],
)
def test_escapes_from_the_sandbox_fail(source: str) -> None:
    try:
        shown = render(source, [say("user", "a")])
    except RequestError:
        return
    assert "class" not in shown
    assert "root" not in shown


def test_helpers() -> None:
    now = datetime(2025, 3, 9, 12, 30)
    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}{{ messages[0].content }}", {}, now=lambda: now)
    assert template.render([say("user", "!")]) == "09 Mar 2025!"
    indented = "{{ {'b': 'é<', 'a': [1]} | tojson(indent=2, sort_keys=True) }}{{ messages[0].content }}"
    assert render(indented, [say("user", "!")]) == '{\n  "a": [\n    1\n  ],\n  "b": "é<"\n}!'
    loop = "{% for m in messages %}{% if loop.index > 2 %}{% break %}{% endif %}{{ m.content }}{% endfor %}"
    assert render(loop, [say("assistant", text) for text in "abc"]) == "ab"
    assert render("{{ bos_token }}{{ pad_token }}{{ messages[0].content }}", [say("user", "!")]) == "<s>!"
    assert render("{{ documents }}{{ messages[0].content }}", [say("user", "!")], documents=[1]) == "[1]!"


def test_blocks_leave_no_line_breaks_or_indentation() -> None:
    assert (
        render(
            "{% if true %}\n    {% if true %}\n{{ messages[0].content }}\n    {% endif %}\n{% endif %}",
            [say("user", "a")],
        )
        == "a\n"
    )


def test_messages_cannot_be_replaced_through_a_variable() -> None:
    assert "again" in refused(CHATML, [say("user", "a")], messages=[say("user", "b")])
