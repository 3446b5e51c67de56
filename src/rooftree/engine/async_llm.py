"""The engine for servers: requests in, streams of deltas out, the work in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import Future
from enum import StrEnum
from threading import Thread
from time import monotonic
from typing import TYPE_CHECKING

from rooftree.engine.client import EngineClient
from rooftree.engine.collector import OutputCollector
from rooftree.engine.config import EngineConfig, check_config
from rooftree.engine.frontend import INLINE_CHARACTERS, Frontend, load_frontend
from rooftree.engine.messages import (
    AbortRequests,
    AddRequest,
    EngineBeat,
    EngineCoreOutputs,
    EngineFailed,
    EngineOutput,
    EngineProgress,
    EngineReady,
    SchedulerStats,
)
from rooftree.engine.outputs import RequestOutput
from rooftree.engine.stats import StatLogger
from rooftree.errors import ConfigError, EngineDeadError, ModelError, RequestError
from rooftree.sampling.params import SamplingParams

if TYPE_CHECKING:
    from rooftree.engine.input_processor import InputProcessor, Prompt
    from rooftree.engine.output_processor import OutputProcessor
    from rooftree.specs.model import ModelSpec
    from rooftree.text.chat_template import ChatTemplate
    from rooftree.text.tokenizer import Tokenizer

_SHUTDOWN_SECONDS = 5.0
_RETRY_SECONDS = 1.0


class EngineState(StrEnum):
    """Life of an engine, in order; DEAD is the end that nobody asked for."""

    LOADING = "LOADING"
    READY = "READY"
    STOPPED = "STOPPED"
    DEAD = "DEAD"


class AsyncLLM:
    """One model behind an event loop. Everything but ``start`` is called on that one loop.

    Attributes:
        state: see ``EngineState``.
        loading_phase: what start-up is at, for those who wait.
        ready: what start-up found, once it is over.
        scheduler_stats: the engine's latest state.
    """

    def __init__(
        self,
        config: EngineConfig,
        client: EngineClient,
        frontend: Future[Frontend],
        stat_logger: StatLogger | None = None,
    ) -> None:
        self.config = config
        self.state = EngineState.LOADING
        self.loading_phase = ""
        self.ready: EngineReady | None = None
        self.scheduler_stats = SchedulerStats()
        self._client = client
        self._stat_logger = stat_logger
        self._loading_frontend = frontend
        self._frontend: Frontend | None = None
        self._door: InputProcessor | None = None
        self._books: OutputProcessor | None = None
        self._collectors: dict[str, OutputCollector] = {}
        self._loaded = asyncio.Event()
        self._failure: Exception | None = None
        self._attached = False
        self._last_heartbeat = monotonic()

    @classmethod
    def start(cls, config: EngineConfig, stat_logger: StatLogger | None = None) -> AsyncLLM:
        """Start the engine process and, beside it, a thread that reads the tokenizer; returns at once.

        May be called before there is an event loop. ``config.model`` should be on this machine by now, or
        both sides would fetch it.

        Raises:
            ConfigError: an option that is wrong in itself. Everything else is raised by ``wait_ready``.
        """
        check_config(config)
        client = EngineClient(config)
        return cls(config, client, _in_thread(lambda: load_frontend(config.model)), stat_logger)

    async def wait_ready(self) -> EngineReady:
        """Wait until the engine has computed its first token.

        Raises:
            ConfigError, ModelError: why the engine cannot start.
            EngineDeadError: it ended without giving such a reason, or was shut down meanwhile.
        """
        self._attach()
        await self._loaded.wait()
        if self.ready is None or self._failure is not None:
            raise self._failure or EngineDeadError("the engine was shut down")
        return self.ready

    def _attach(self) -> None:
        """Begin to listen, on the loop that runs now."""
        if self._attached:
            return
        self._attached = True
        loop = asyncio.get_running_loop()
        self._client.attach(loop, self._on_message, self._on_exit)

        def loaded(future: Future[Frontend]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop may have closed meanwhile
                loop.call_soon_threadsafe(self._on_frontend, future)

        self._loading_frontend.add_done_callback(loaded)

    def _on_frontend(self, future: Future[Frontend]) -> None:
        error = future.exception()
        if error is None:
            self._frontend = future.result()
            self._become_ready()
        else:
            self._die(error if isinstance(error, Exception) else EngineDeadError(repr(error)))

    def _on_message(self, message: EngineOutput) -> None:
        self._last_heartbeat = monotonic()
        match message:
            case EngineCoreOutputs():
                if message.stats is not None:
                    self.scheduler_stats = message.stats
                if self._books is not None:
                    self._send_aborts(self._books.process(message))
            case EngineBeat():
                pass  # that it has come is all it says
            case EngineProgress():
                self.loading_phase = message.phase
            case EngineReady():
                self.ready = message
                self._become_ready()
            case EngineFailed():
                self._die(_reason(message))

    def _on_exit(self, status: int) -> None:
        self._die(EngineDeadError(f"the engine process ended with status {status}"))

    def _become_ready(self) -> None:
        if self.state is not EngineState.LOADING or self._frontend is None or self.ready is None:
            return
        # The text floor takes longest to import; until here that is the business of the thread beside us.
        from rooftree.engine.input_processor import InputProcessor
        from rooftree.engine.output_processor import OutputProcessor

        self._door = InputProcessor(
            self._frontend.tokenizer,
            vocab_size=self._frontend.spec.vocab_size,
            eos_token_ids=self._frontend.eos_token_ids,
            max_model_len=self.ready.max_model_len,
            allow_priority=self.config.scheduling_policy == "priority",
        )
        self._books = OutputProcessor(self._frontend.tokenizer, self._stat_logger)
        self.state = EngineState.READY
        self._loaded.set()

    def _die(self, error: Exception) -> None:
        """The engine has ended and nobody asked it to."""
        if self.state in (EngineState.STOPPED, EngineState.DEAD):
            return
        self.state = EngineState.DEAD
        self._failure = error
        self._loaded.set()
        for request_id, collector in list(self._collectors.items()):
            collector.fail(EngineDeadError(f"the engine died: {error}"))
            if self._books is not None:
                self._books.abort(request_id, reason="error")
        self._client.close()

    @property
    def dead_reason(self) -> str | None:
        """Why the state is DEAD; None in any other."""
        return str(self._failure) if self.state is EngineState.DEAD else None

    @property
    def seconds_since_heartbeat(self) -> float:
        """Seconds since the engine was last heard of: about one when idle, the length of a step when busy."""
        return monotonic() - self._last_heartbeat

    @property
    def frontend(self) -> Frontend:
        """The model's tokenizer, template and numbers.

        Raises:
            RequestError: 503 while the model is loading.
        """
        if self._frontend is None:
            raise self._not_ready()
        return self._frontend

    @property
    def tokenizer(self) -> Tokenizer:
        """See ``frontend``."""
        return self.frontend.tokenizer

    @property
    def chat_template(self) -> ChatTemplate | None:
        """See ``frontend``; None where the model has none."""
        return self.frontend.chat_template

    @property
    def spec(self) -> ModelSpec:
        """See ``frontend``."""
        return self.frontend.spec

    @property
    def name(self) -> str:
        """The model's own name; see ``frontend``."""
        return self.frontend.name

    @property
    def generation_defaults(self) -> Mapping[str, float | int]:
        """Sampling options that the model advises; see ``frontend``."""
        return self.frontend.generation_defaults

    @property
    def max_model_len(self) -> int:
        """Longest prompt + answer in tokens.

        Raises:
            RequestError: 503 while the model is loading.
        """
        if self.ready is None:
            raise self._not_ready()
        return self.ready.max_model_len

    @property
    def num_unfinished(self) -> int:
        """Generations under way, waiting ones included."""
        return 0 if self._books is None else self._books.num_unfinished

    async def generate(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams,
        priority: int = 0,
        cache_salt: str = "",
    ) -> AsyncGenerator[RequestOutput, None]:
        """Deltas of one request until it has ended. Closing the generator, or cancelling, ends the request.

        Raises:
            RequestError: the request is refused (before anything is yielded).
            EngineDeadError: the engine has died.
        """
        collector = await self._add_request(request_id, prompt, params, priority, cache_salt)
        finished = False
        try:
            while not finished:
                output = await collector.get()
                finished = output.finished
                yield output
        finally:
            if self._collectors.get(request_id) is collector:
                self._abort(request_id, None)

    async def _add_request(
        self, request_id: str, prompt: Prompt, params: SamplingParams, priority: int, cache_salt: str
    ) -> OutputCollector:
        arrival = monotonic()
        door, books = self._open_door(1)
        if isinstance(prompt, str) and len(prompt) > INLINE_CHARACTERS:
            tokens = await asyncio.to_thread(door.tokenize, prompt)
        else:
            tokens = door.tokenize(prompt)
        request = door.process(request_id, tokens, params, priority=priority, cache_salt=cache_salt)
        self._open_door(params.n)
        collector = OutputCollector()

        def sink(output: RequestOutput) -> None:
            collector.put(output)
            if output.finished:
                del self._collectors[request_id]

        books.add_request(request, sink, arrival)
        self._collectors[request_id] = collector
        try:
            self._client.send(AddRequest.of(request.choices))
        except BaseException:
            self._abort(request_id, None)  # what cannot be sent must not stay in the books
            raise
        return collector

    def _open_door(self, num_choices: int) -> tuple[InputProcessor, OutputProcessor]:
        """Whoever takes in a request, if ``num_choices`` more generations are welcome now."""
        if self.state is not EngineState.READY or self._door is None or self._books is None:
            raise self._not_ready()
        self.check_room(num_choices)
        return self._door, self._books

    def check_room(self, num_choices: int) -> None:
        """Refuse more generations than may run and wait.

        Raises:
            RequestError: 400 if there is never room for so many, 503 if there is none now.
        """
        room = self.config.max_num_seqs + self.config.max_num_waiting
        limit = f"at most {room} (--max-num-seqs + --max-num-waiting)"
        if num_choices > room:
            raise RequestError(
                f"the request asks for {num_choices} generations, of {limit} that run or wait at once; "
                f"ask for fewer, or in several requests",
                param="n",
            )
        if self.num_unfinished + num_choices > room:
            raise RequestError(
                f"{self.num_unfinished} generations are running or waiting, of {limit}; there is no room for "
                f"{num_choices} more now",
                status=503,
                code="overloaded",
                retry_after=_RETRY_SECONDS,
            )

    def _not_ready(self) -> RequestError | EngineDeadError:
        match self.state:
            case EngineState.DEAD:
                return EngineDeadError(f"the engine died: {self._failure}")
            case EngineState.LOADING | EngineState.READY:
                return RequestError(
                    "the model is loading", status=503, code="loading", retry_after=_RETRY_SECONDS
                )
            case EngineState.STOPPED:
                return RequestError("the server is shutting down", status=503, code="shutting_down")

    async def abort(self, request_id: str) -> None:
        """End a request; its generator yields a last delta, reason "abort". Unknown ids are ignored."""
        self._abort(request_id, None)

    def _abort(self, request_id: str, error: str | None) -> None:
        if self._books is not None:
            self._send_aborts(self._books.abort(request_id, error))

    def _send_aborts(self, core_ids: list[str]) -> None:
        if core_ids:
            self._client.send(AbortRequests(core_ids))

    async def shutdown(self) -> None:
        """End all requests and the engine process; idempotent. A dead engine stays DEAD."""
        if self.state is EngineState.STOPPED:
            return
        was, self.state = self.state, EngineState.STOPPED
        if was is EngineState.DEAD:
            self.state = was
            return
        self._loaded.set()
        for request_id in list(self._collectors):
            self._abort(request_id, "the server has shut down")
        if was is not EngineState.LOADING:
            self._client.request_shutdown()
            await asyncio.to_thread(self._client.wait, _SHUTDOWN_SECONDS)
        self._client.close()


def _reason(message: EngineFailed) -> Exception:
    """The error that ended the engine process, as the same class where it tells the caller what to change."""
    kinds: dict[str, type[Exception]] = {"ConfigError": ConfigError, "ModelError": ModelError}
    if message.kind in kinds:
        return kinds[message.kind](message.message)
    return EngineDeadError(f"{message.kind}: {message.message}")


def _in_thread(load: Callable[[], Frontend]) -> Future[Frontend]:
    future: Future[Frontend] = Future()

    def work() -> None:
        try:
            future.set_result(load())
        except BaseException as error:
            future.set_exception(error)

    Thread(target=work, name="load-frontend", daemon=True).start()
    return future
