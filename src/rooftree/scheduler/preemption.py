"""Who gives way when a running request needs a block and there is none."""

from __future__ import annotations

from collections.abc import Sequence

from rooftree.scheduler.request import Request


def choose_victim(running: Sequence[Request], needy: Request) -> Request:
    """Whose preemption costs least: of the lowest priority, with the fewest computed tokens, the latest.

    The choice is among ``needy`` and those ranked behind it, so that no one already scheduled in this step is
    undone, and never the first of all: it makes progress at every step, so all others come to their turn too,
    and no two requests can take the same blocks from each other for ever.

    Args:
        running: all that run, in order of rank; ``needy`` is one of them.

    Returns:
        The victim; ``needy`` itself where no one else is left.
    """
    return min(running[max(1, running.index(needy)) :], key=_cost, default=needy)


def _cost(request: Request) -> tuple[int, int, int]:
    priority, arrival = request.rank
    return -priority, request.num_computed_tokens, -arrival
