"""Chat templates: messages to the one text that the model was trained on."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import jinja2

from rooftree.errors import RequestError
from rooftree.text.messages import Message, check_messages
from rooftree.text.template_environment import TemplateRefusalError, compile_template
from rooftree.text.template_facts import TemplateFacts

_MARK = re.compile(r"rooftreemark\d+x\d+x")


class ChatTemplate:
    """A model's chat template.

    The template comes with the model and is run in jinja2's sandbox, with the variables and helpers that
    ``transformers`` gives it; what is in messages is data and never run.

    Args:
        source: the template's text; None for a model that has none: every ``render`` is then refused.
        special_tokens: variables such as ``bos_token`` (``Tokenizer.template_variables``).
        now: the clock that ``strftime_now`` reads.

    Raises:
        ModelError: the template is not valid jinja2.
    """

    def __init__(
        self,
        source: str | None,
        special_tokens: Mapping[str, str],
        *,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        self._special_tokens = dict(special_tokens)
        self._compiled = None if source is None else compile_template(source, now)

    def render(
        self,
        messages: Sequence[Any],
        /,
        tools: Sequence[Any] | None = None,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> str:
        """Render a conversation.

        Args:
            messages: as the OpenAI API has them: ``role`` and ``content`` (text, text parts or null), and
                ``tool_calls``, ``tool_call_id``, ``name`` and whatever else the template reads.
            tools: the tools' definitions.
            kwargs: further variables, such as ``enable_thinking`` or ``documents``; one that the template
                does not read has no effect.

        Raises:
            RequestError: the messages are not valid; or the template refuses them, with its own message, or
                cannot render them; or it has no place for tools, tool calls or the text of some message.
        """
        if self._compiled is None:
            raise RequestError(
                "the model has no chat template, so it cannot chat; /v1/completions takes plain prompts",
                param="messages",
                code="no_chat_template",
            )
        if "messages" in kwargs:
            raise RequestError("messages cannot be given again as a template variable", param="messages")
        template, facts = self._compiled
        checked = check_messages(messages)
        _refuse_tools_without_place(facts, checked, tools)
        variables = {
            **self._special_tokens,
            "documents": None,
            "tools": list(tools) if tools else None,
            "add_generation_prompt": add_generation_prompt,
            **kwargs,
        }
        return _Rendering(template, facts, variables).whole(checked)


def _refuse_tools_without_place(
    facts: TemplateFacts, messages: Sequence[Message], tools: Sequence[Any] | None
) -> None:
    if tools and "tools" not in facts.names:
        raise RequestError("the model's chat template has no place for tools; leave them out", param="tools")
    index = next((i for i, message in enumerate(messages) if message.has_tool_calls), None)
    if index is not None and "tool_calls" not in facts.names:
        raise RequestError(
            f"messages[{index}].tool_calls: the model's chat template has no place for tool calls",
            param="messages",
        )


@dataclass(frozen=True, slots=True)
class _Rendering:
    template: jinja2.Template
    facts: TemplateFacts
    variables: Mapping[str, Any]

    def whole(self, messages: Sequence[Message]) -> str:
        """Render, and make sure that no text was left out.

        Some templates read only the first part of a content, or know only some roles. Texts of the assistant
        are not looked after: many a template leaves out its earlier thoughts on purpose.
        """
        prompt = self.once(messages)
        if self.lost(messages, prompt) is None:
            return prompt
        messages = [message.joined() for message in messages]
        prompt = self.once(messages)
        index = self.lost(messages, prompt)
        if index is None:
            return prompt
        raise RequestError(
            f"messages[{index}]: the model's chat template leaves out the text of this message (role "
            f"{messages[index].role!r}); use a role that the model knows, such as 'system' or 'user'",
            param="messages",
        )

    def once(self, messages: Sequence[Message]) -> str:
        """Render; whatever goes wrong is a refusal of these messages by this template."""
        shaped = [message.shaped(self.facts) for message in messages]
        try:
            return self.template.render(messages=shaped, **self.variables)
        except TemplateRefusalError as error:
            raise RequestError(str(error), param="messages") from error
        except Exception as error:
            raise RequestError(
                f"the model's chat template cannot render these messages: {type(error).__name__}: {error}",
                param="messages",
            ) from error

    def lost(self, messages: Sequence[Message], prompt: str) -> int | None:
        """The first message of which some text is not in the prompt, or None.

        Where a text is not found in its place (it may have been escaped, cut or moved), the messages are
        rendered again with a mark in place of each text, and the marks are looked for.
        """
        if _all_in_order(messages, prompt):
            return None
        marked = [_marked(message, index) for index, message in enumerate(messages)]
        try:
            probe = self.once(marked)
        except RequestError:
            return None
        found = set(_MARK.findall(probe))
        for index, message in enumerate(marked):
            if message.role != "assistant" and not found.issuperset(_MARK.findall(" ".join(message.texts))):
                return index
        return None


def _all_in_order(messages: Sequence[Message], prompt: str) -> bool:
    position = 0
    for text in (text.strip() for message in messages for text in message.texts):
        position = prompt.find(text, position)
        if position < 0:
            return False
        position += len(text)
    return True


def _marked(message: Message, index: int) -> Message:
    """The message with each text that is not blank replaced by one that occurs nowhere else."""
    marks = [
        f"rooftreemark{index}x{part}x" if text.strip() else text for part, text in enumerate(message.texts)
    ]
    return message.with_texts(marks)
