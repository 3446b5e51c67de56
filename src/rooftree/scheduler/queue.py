"""The requests that wait, in the order in which they will run."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from rooftree.scheduler.request import Request


class RequestQueue:
    """A queue by rank: priority (lower first), then arrival. Equal priorities are first come, first served.

    A preempted request comes back with the rank it had, and so goes ahead of all that arrived after it;
    nothing depends on the moment of its return. Adding and taking cost O(log n), removing O(1): what was
    removed leaves its entry in the heap, to be dropped on the way or when such entries are the majority.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int]] = []
        self._waiting: dict[tuple[int, int], Request] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, request: Request) -> None:
        """Let a request wait; its rank must differ from all others'."""
        self._waiting[request.rank] = request
        heappush(self._heap, request.rank)

    def peek(self) -> Request:
        """The request whose turn it is. IndexError if none waits."""
        while self._heap[0] not in self._waiting:
            heappop(self._heap)
        return self._waiting[self._heap[0]]

    def pop(self) -> Request:
        """Take the request whose turn it is. IndexError if none waits."""
        request = self.peek()
        heappop(self._heap)
        del self._waiting[request.rank]
        return request

    def remove(self, request: Request) -> None:
        """Take out a request that will never come back, wherever it stands."""
        del self._waiting[request.rank]
        if len(self._heap) > 2 * len(self._waiting) + 16:
            self._heap = list(self._waiting)
            heapify(self._heap)
