"""How much there is in a JSON text, told before any of it is built.

A reader of JSON holds the interpreter's lock from beginning to end: megabytes of small values, each an object
of its own, or of numbers with thousands of digits would hold up every other thread for seconds. Strings are
quick, however long. So values are counted first, by operations on arrays, which let other threads run.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rooftree.errors import RequestError

MAX_VALUES = 1 << 18
"""Numbers or texts in a list: some tens of milliseconds for any reader. Of lists, and of keys with their
values, about a fifth as many, since each takes longer.
"""

MAX_DIGITS = 32

_PIECE = 1 << 20
_QUOTE, _BACKSLASH, _COMMA, _ZERO, _NINE = b'"\\,09'
_WEIGHTS = np.zeros(256, np.uint8)
_WEIGHTS[list(b",:[{")] = 1, 4, 4, 4


def check_json_size(text: bytes | bytearray, what: str, param: str | None = None) -> None:
    """Refuse a JSON text that would take too long to read. Whether it is JSON at all is not looked at.

    Args:
        what: how the refusal calls it.
        param: the request's field that holds it, if it is one.

    Raises:
        RequestError: 413 with the number of values that are possible; 400 for a number of absurd length.
    """
    if not is_quickly_read(text, what, param):
        raise _too_many(what, param)


def is_quickly_read(text: bytes | bytearray, what: str, param: str | None = None) -> bool:
    """Whether a JSON text may be read at once; else its numbers are too many, and nothing besides them.

    Raises:
        RequestError: as ``check_json_size``, for all other values.
    """
    # Most texts are too short for so many, and as few long numbers do no harm.
    if len(text) <= MAX_VALUES // 4:
        return True
    scan = _Scan()
    weight = 0
    for start in range(0, len(text), _PIECE):
        weight += scan.take(np.frombuffer(text, np.uint8, min(_PIECE, len(text) - start), start))
        if weight - scan.num_numbers > MAX_VALUES:
            raise _too_many(what, param)
        if scan.longest_number > MAX_DIGITS:
            raise RequestError(f"{what} holds a number of absurd length", param=param, code="invalid_json")
    return weight <= MAX_VALUES


def _too_many(what: str, param: str | None) -> RequestError:
    return RequestError(
        f"{what} has too many values: possible are {MAX_VALUES} numbers or texts, and of lists or "
        f"keys a fifth as many; send less, or in several requests",
        status=413,
        param=param,
        code="request_too_large",
    )


class _Scan:
    """What must be known from one piece to the next.

    Attributes:
        longest_number: digits in a row outside of strings, so far.
        num_numbers: those with a comma behind them, so far.
    """

    def __init__(self) -> None:
        self.longest_number = 0
        self.num_numbers = 0
        self._in_string = False
        self._escaped = False
        self._num_digits = 0

    def take(self, piece: NDArray[np.uint8]) -> int:
        """Weight of the values in the next piece of the text, which is not empty."""
        quotes = piece == _QUOTE
        self._drop_escaped(quotes, piece)
        # Whether an odd number of quotes has come by then, each character's own included.
        odd = np.bitwise_xor.accumulate(quotes)
        outside = odd == self._in_string
        self._in_string ^= bool(odd[-1])
        digits = (piece >= _ZERO) & (piece <= _NINE) & outside
        self.num_numbers += int(self._num_digits > 0 and piece[0] == _COMMA)
        self.num_numbers += int(np.count_nonzero(digits[:-1] & (piece[1:] == _COMMA)))
        self._count_digits(digits)
        return int(_WEIGHTS[piece[outside]].sum())

    def _drop_escaped(self, quotes: NDArray[np.bool_], piece: NDArray[np.uint8]) -> None:
        """Clear the quotes that a backslash makes part of a string. Of backslashes in a row, each second one
        is escaped by the one before it.
        """
        backslashes = np.flatnonzero(piece == _BACKSLASH)
        if self._escaped:
            quotes[0] = False
            backslashes = backslashes[1:] if piece[0] == _BACKSLASH else backslashes
        order = np.arange(backslashes.size)
        begins = np.diff(backslashes, prepend=-2) != 1
        place = order - np.maximum.accumulate(np.where(begins, order, 0))
        escaped = backslashes[place % 2 == 0] + 1
        self._escaped = bool(escaped.size and escaped[-1] == piece.size)
        quotes[escaped[: escaped.size - self._escaped]] = False

    def _count_digits(self, digits: NDArray[np.bool_]) -> None:
        others = np.flatnonzero(~digits)
        edges = np.concatenate(([-1 - self._num_digits], others, [digits.size]))
        self.longest_number = max(self.longest_number, int(np.diff(edges).max()) - 1)
        self._num_digits = int(digits.size - 1 - edges[-2])
