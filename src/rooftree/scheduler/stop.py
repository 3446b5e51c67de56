"""Whether the token just appended ends a request. Stop strings are text and so not decided here."""

from __future__ import annotations

from typing import NamedTuple

from rooftree.scheduler.request import Request, RequestStatus


class Stop(NamedTuple):
    """How a request ends. ``token_id`` is the member of ``stop_token_ids`` that ended it, if one did."""

    status: RequestStatus
    token_id: int | None = None


_EOS = Stop(RequestStatus.FINISHED_STOPPED)
_LENGTH = Stop(RequestStatus.FINISHED_LENGTH_CAPPED)


def check_stop(request: Request, max_model_len: int) -> Stop | None:
    """Decide after each appended token; None means go on.

    No token ends the answer before ``min_tokens``, counting itself. The limits on length hold always:
    ``min_tokens`` is at most ``max_tokens``, so only the context window could cut it short.
    """
    num_output_tokens = request.num_output_tokens
    token = request.token_ids[-1]
    if token in request.ending_token_ids and num_output_tokens >= request.params.min_tokens:
        is_eos = token in request.eos_token_ids and not request.params.ignore_eos
        return _EOS if is_eos else Stop(RequestStatus.FINISHED_STOPPED, token)
    if num_output_tokens >= request.max_tokens or len(request.token_ids) >= max_model_len:
        return _LENGTH
    return None
