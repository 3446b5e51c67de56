"""Fetching a model that is not on this machine yet, beside the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time

log = logging.getLogger("rooftree.server")

_REPORT_SECONDS = 2.0
_ABANDON_SECONDS = 1.0


class _AbandonedError(Exception):
    """Ends a download that nobody waits for."""


async def fetch(model: str) -> None:
    """Download ``model`` in a thread, logging how far it is. Cancelling ends the download soon after.

    Raises:
        ModelError: it cannot be had.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    abandoned = threading.Event()
    last = time.monotonic()

    def progress(num_bytes: int, total: int) -> None:
        nonlocal last
        if abandoned.is_set():
            raise _AbandonedError
        if time.monotonic() - last > _REPORT_SECONDS:
            last = time.monotonic()
            log.info("fetching %s: %d of %d MB", model, num_bytes // 10**6, total // 10**6)

    def work() -> None:
        # Where nothing is fetched, this import would only delay the first answer.
        from rooftree.checkpoint.open import open_checkpoint

        error: Exception | None = None
        try:
            open_checkpoint(model, progress=progress)
        except Exception as caught:
            error = caught
        with contextlib.suppress(RuntimeError):  # the loop may have closed meanwhile
            loop.call_soon_threadsafe(_settle, done, error)

    log.info("fetching %s", model)
    # Not the loop's own pool: its threads are waited for at exit, and a download may hang.
    thread = threading.Thread(target=work, name="fetch-model", daemon=True)
    thread.start()
    try:
        await done
    except asyncio.CancelledError:
        abandoned.set()
        # So that a download which still makes progress has ended its pip before this process ends.
        await asyncio.to_thread(thread.join, _ABANDON_SECONDS)
        raise


def _settle(done: asyncio.Future[None], error: Exception | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
