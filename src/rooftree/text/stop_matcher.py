"""Stop strings in a stream of text: found wherever it is cut, and nothing held back longer than needed."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from rooftree.errors import RequestError

MAX_STOP_CHARACTERS = 16_384


class StopMatcher:
    """Watches a text for the first stop string that becomes complete.

    The match is the occurrence that ends first; of those that end at the same character, the longest. The
    text before it is what an answer keeps: for one stop string, ``text.split(stop)[0]``. The rule looks at
    characters one by one, so how the text is cut into pushes cannot matter.
    """

    __slots__ = ("_matched", "_node", "_stops")

    def __init__(self, stops: StopStrings) -> None:
        self._stops = stops
        self._node = 0
        self._matched: str | None = None

    def push(self, text: str, *, may_stop: bool = True) -> tuple[str, str | None]:
        """Take more text; gives the text that is safe to show, and the stop string that matched, if one did.

        What could still become a stop string is held back for a later call. After a match everything is
        dropped: the rest of this text and all that is pushed later.

        Args:
            may_stop: False for text that can be no part of a match (``min_tokens`` still holds): it is shown
                at once, after what was held back, and matching starts afresh behind it.
        """
        if self._matched is not None:
            return "", self._matched
        if not may_stop:
            return self.flush() + text, None
        return self._scan(text)

    def flush(self) -> str:
        """The text ended otherwise: gives what was held back. Empty after a match, or when called again."""
        held = self._stops.path(self._node)
        self._node = 0
        return held

    def _scan(self, text: str) -> tuple[str, str | None]:
        stops = self._stops
        start = node = self._node
        if node == 0 and stops.first_characters.isdisjoint(text):
            return text, None
        for index, character in enumerate(text):
            node = stops.step(node, character)
            match = stops.matches[node]
            if match:
                self._node = 0
                self._matched = stops.path(node)[-match:]
                return self._released(start, text[: index + 1], match), self._matched
        self._node = node
        return self._released(start, text, stops.depths[node]), None

    def _released(self, start: int, text: str, num_kept: int) -> str:
        """Held text followed by new text, less the last ``num_kept`` characters."""
        num_held = self._stops.depths[start]
        num_released = num_held + len(text) - num_kept
        if num_released < num_held:
            return self._stops.path(start, num_released)
        return self._stops.path(start) + text[: num_released - num_held]


def _checked(stops: Sequence[str]) -> Sequence[str]:
    if not all(stops):
        raise RequestError("a stop string is empty; leave it out", param="stop")
    total = sum(map(len, stops))
    if total > MAX_STOP_CHARACTERS:
        raise RequestError(
            f"the stop strings have {total} characters together; at most {MAX_STOP_CHARACTERS} are possible",
            param="stop",
        )
    return stops


class StopStrings:
    """Stop strings made ready for matching; all matchers that look for them share one.

    A trie, in which a node is the longest end of the text that begins a stop string (Aho and Corasick, 1975).

    Args:
        stops: at most 16,384 characters together.

    Attributes:
        first_characters: those that lead away from the root (node 0).
        depths: characters on the way from the root to the node.
        matches: length of the longest stop string that ends at the node, 0 if none does.

    Raises:
        RequestError: a stop string is empty, or they are too long together.
    """

    __slots__ = ("__weakref__", "_children", "_fails", "_sources", "depths", "first_characters", "matches")

    def __init__(self, stops: Sequence[str]) -> None:
        self._children: list[dict[str, int]] = [{}]
        self._sources = [""]
        self.depths = [0]
        self.matches = [0]
        for stop in _checked(stops):
            self._insert(stop)
        self.first_characters = self._children[0].keys()
        self._fails = [0] * len(self.depths)
        self._link()

    def step(self, node: int, character: str) -> int:
        """The node after one more character. Amortised constant: a step back undoes one forward."""
        children = self._children
        while node and character not in children[node]:
            node = self._fails[node]
        return children[node].get(character, 0)

    def path(self, node: int, length: int | None = None) -> str:
        """The characters from the root to a node, or the first ``length`` of them."""
        return self._sources[node][: self.depths[node] if length is None else length]

    def _insert(self, stop: str) -> None:
        node = 0
        for character in stop:
            child = self._children[node].get(character)
            if child is None:
                child = len(self._children)
                self._children[node][character] = child
                self._children.append({})
                self._sources.append(stop)
                self.depths.append(self.depths[node] + 1)
                self.matches.append(0)
            node = child
        self.matches[node] = len(stop)

    def _link(self) -> None:
        """Point each node at its longest proper end that is a node too, shallow nodes first."""
        queue = deque(self._children[0].values())
        while queue:
            node = queue.popleft()
            self.matches[node] = self.matches[node] or self.matches[self._fails[node]]
            for character, child in self._children[node].items():
                self._fails[child] = self.step(self._fails[node], character)
                queue.append(child)
