"""The engine in the caller's own process and thread: ``LLM(model).generate(prompts)``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

from rooftree.engine.builder import Progress, build_engine_core
from rooftree.engine.config import EngineConfig
from rooftree.engine.core import EngineCore
from rooftree.engine.frontend import Frontend, frontend_of
from rooftree.engine.input_processor import InputProcessor, ProcessedRequest, Prompt, check_text_length
from rooftree.engine.merging import merge, sort_choices
from rooftree.engine.messages import EngineReady
from rooftree.engine.output_processor import OutputProcessor
from rooftree.engine.outputs import RequestOutput
from rooftree.engine.stats import StatLogger
from rooftree.errors import RequestError
from rooftree.sampling.params import SamplingParams

if TYPE_CHECKING:
    from rooftree.text.chat_template import ChatTemplate
    from rooftree.text.tokenizer import Tokenizer

Message = Mapping[str, Any]
Params = SamplingParams | Sequence[SamplingParams]
OnProgress = Callable[[int, int], None]


class LLM:
    """A model ready to answer. For one thread at a time.

    Args:
        model: see ``EngineConfig.model``.
        stat_logger: reader of the statistics.
        progress: told the name of each phase of start-up.
        options: further fields of ``EngineConfig``.

    Attributes:
        ready: what start-up found: phases in seconds, the memory table, limits.
        core: the step loop; ``core.last_step`` is the record of the latest step.

    Raises:
        ConfigError, ModelError: why it cannot start.
    """

    def __init__(
        self,
        model: str = "smollm2",
        *,
        stat_logger: StatLogger | None = None,
        progress: Progress = lambda phase: None,
        **options: Any,
    ) -> None:
        from rooftree.checkpoint.open import open_checkpoint

        config = EngineConfig(model=model, **options)
        start = monotonic()
        checkpoint = open_checkpoint(model)
        frontend = frontend_of(checkpoint)
        seconds = monotonic() - start
        core, ready = build_engine_core(config, checkpoint, progress=progress)
        ready.phase_seconds["open"] = seconds
        self._set_up(core, ready, frontend, stat_logger)

    @classmethod
    def from_parts(
        cls, core: EngineCore, ready: EngineReady, frontend: Frontend, stat_logger: StatLogger | None = None
    ) -> Self:
        """An LLM around an engine that exists already."""
        llm = cls.__new__(cls)
        llm._set_up(core, ready, frontend, stat_logger)
        return llm

    def _set_up(
        self, core: EngineCore, ready: EngineReady, frontend: Frontend, stat_logger: StatLogger | None
    ) -> None:
        self.core = core
        self.ready = ready
        self.frontend = frontend
        self._door = InputProcessor(
            frontend.tokenizer,
            vocab_size=frontend.spec.vocab_size,
            eos_token_ids=frontend.eos_token_ids,
            max_model_len=ready.max_model_len,
            allow_priority=core.config.scheduling_policy == "priority",
        )
        self._books = OutputProcessor(frontend.tokenizer, stat_logger)
        self._num_requests = 0

    @property
    def config(self) -> EngineConfig:
        """What the engine was started with."""
        return self.core.config

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self.frontend.tokenizer

    @property
    def chat_template(self) -> ChatTemplate | None:
        """The model's chat template; None where it has none."""
        return self.frontend.chat_template

    @property
    def max_model_len(self) -> int:
        """Longest prompt + answer in tokens."""
        return self.ready.max_model_len

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: Params | None = None,
        *,
        priority: int = 0,
        cache_salt: str = "",
        on_progress: OnProgress = lambda done, total: None,
    ) -> list[RequestOutput]:
        """Answer all prompts, together; whole answers in the order of the prompts.

        Args:
            prompts: a text or token ids, or a list of such.
            sampling_params: for all prompts, or one for each; None: the defaults.
            on_progress: told how many requests have ended, of how many.

        Raises:
            RequestError: a prompt or its parameters are refused; then none has run.
        """
        return self._run(self._process(_as_list(prompts), sampling_params, priority, cache_salt), on_progress)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: Params | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        priority: int = 0,
        cache_salt: str = "",
        on_progress: OnProgress = lambda done, total: None,
    ) -> list[RequestOutput]:
        """Answer one conversation or a list of them.

        Raises:
            RequestError: as ``generate``; no chat template, or one that refuses the messages.
        """
        prompts = [self.render(each, tools, add_generation_prompt) for each in _conversations(messages)]
        return self._run(self._process(prompts, sampling_params, priority, cache_salt), on_progress)

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> list[int]:
        """Token ids of a conversation; the template alone decides on special tokens.

        Raises:
            RequestError: no chat template, or one that refuses the messages; or a text that cannot fit the
                context window.
        """
        if self.chat_template is None:
            raise RequestError(
                "this model has no chat template; use generate, or rooftree run --raw",
                param="messages",
                code="no_chat_template",
            )
        text = self.chat_template.render(messages, tools=tools, add_generation_prompt=add_generation_prompt)
        check_text_length(self.tokenizer, text, self.max_model_len, "messages")
        return self.tokenizer.encode(text, add_special_tokens=False, param="messages")

    def stream(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        priority: int = 0,
        cache_salt: str = "",
    ) -> Iterator[RequestOutput]:
        """Deltas of one answer as they come. Closing the iterator ends the request.

        Raises:
            RequestError: the request is refused; raised here, before the first step.
        """
        (request,) = self._process([prompt], sampling_params, priority, cache_salt)
        return self._deltas(request)

    def _deltas(self, request: ProcessedRequest) -> Iterator[RequestOutput]:
        news: list[RequestOutput] = []
        self._submit(request, news.append)
        try:
            while True:
                for output in news:
                    yield output
                    if output.finished:
                        return
                news.clear()
                self._step()
        finally:
            self._abort([request])

    def _process(
        self, prompts: Sequence[Prompt], params: Params | None, priority: int, cache_salt: str
    ) -> list[ProcessedRequest]:
        """All requests, or the first refusal."""
        each = [params or SamplingParams()] * len(prompts) if not isinstance(params, Sequence) else params
        if len(each) != len(prompts):
            raise RequestError(
                f"{len(prompts)} prompts came with {len(each)} sampling_params; "
                f"give one for all or one for each",
                param="sampling_params",
            )
        requests = []
        for prompt, own in zip(prompts, each, strict=True):
            tokens = self._door.tokenize(prompt)
            request_id = str(self._num_requests)
            self._num_requests += 1
            requests.append(
                self._door.process(request_id, tokens, own, priority=priority, cache_salt=cache_salt)
            )
        return requests

    def _run(self, requests: Sequence[ProcessedRequest], on_progress: OnProgress) -> list[RequestOutput]:
        answers = [RequestOutput(request.request_id, request.prompt_token_ids, []) for request in requests]
        num_done = 0

        def sink_of(answer: RequestOutput) -> Callable[[RequestOutput], None]:
            def sink(delta: RequestOutput) -> None:
                nonlocal num_done
                merge(answer, delta)
                num_done += answer.finished

            return sink

        try:
            for request, answer in zip(requests, answers, strict=True):
                self._submit(request, sink_of(answer))
            while num_done < len(requests):
                before = num_done
                self._step()
                if num_done > before:
                    on_progress(num_done, len(requests))
        finally:
            self._abort(requests)
        return [sort_choices(answer) for answer in answers]

    def _submit(self, request: ProcessedRequest, sink: Callable[[RequestOutput], None]) -> None:
        self._books.add_request(request, sink, monotonic())
        for choice in request.choices:
            self.core.add_request(choice)

    def _step(self) -> None:
        self.core.abort_requests(self._books.process(self.core.step()))

    def _abort(self, requests: Sequence[ProcessedRequest]) -> None:
        """End what has not ended, in the books and in the core."""
        ids = [core_id for request in requests for core_id in self._books.abort(request.request_id)]
        self.core.abort_requests(ids)

    def close(self) -> None:
        """Give memory and threads back; idempotent."""
        self.core.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _as_list(prompts: Prompt | Sequence[Prompt]) -> Sequence[Prompt]:
    """A list of prompts, also of one: a text, or what holds an id. The door checks what else it holds."""
    if isinstance(prompts, str) or any(isinstance(item, int) for item in prompts):
        return [cast(Prompt, prompts)]
    return cast(Sequence[Prompt], prompts)


def _conversations(messages: Sequence[Message] | Sequence[Sequence[Message]]) -> Sequence[Sequence[Message]]:
    """A list of conversations, also of one: what holds a message. ``render`` checks what else it holds."""
    if any(isinstance(item, Mapping) for item in messages):
        return [cast(Sequence[Message], messages)]
    return cast(Sequence[Sequence[Message]], messages)
