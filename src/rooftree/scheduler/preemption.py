"""Who gives way when a running request needs a block and there is none."""

from __future__ import annotations

from collections.abc import Sequence

from rooftree.scheduler.request import Request


def choose_victim(candidates: Sequence[Request]) -> Request:
    """Whose preemption costs least: of the lowest priority, with the fewest computed tokens, the latest.

    ``candidates`` must be the request in need and those ranked behind it, never one ranked before: so the
    request ranked first can only be its own victim when it runs alone, and alone every request fits. It
    makes progress at every step, therefore all others come to their turn too.
    """
    return min(candidates, key=_cost)


def _cost(request: Request) -> tuple[int, int, int]:
    priority, arrival = request.rank
    return -priority, request.num_computed_tokens, -arrival
