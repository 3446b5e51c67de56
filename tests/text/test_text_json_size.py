"""JSON is measured before it is read: values and digits count, whatever is in strings does not."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooftree.errors import RequestError
from rooftree.text import json_size
from rooftree.text.json_size import MAX_DIGITS, MAX_VALUES, check_json_size, is_quickly_read

STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')
NUMBER = re.compile(rb"[0-9],")

texts = st.text(alphabet='ab"\\,:[{}]1\n')
values = st.recursive(
    st.integers() | st.booleans() | texts, lambda inner: st.lists(inner) | st.dictionaries(texts, inner)
)


def weight(value: Any) -> int:
    """One for each comma, four for each colon and opening bracket of a value in JSON."""
    if isinstance(value, dict):
        return 4 + 5 * len(value) - bool(value) + sum(map(weight, value.values()))
    if isinstance(value, list):
        return 4 + len(value) - bool(value) + sum(map(weight, value))
    return 0


def digits(value: Any) -> int:
    """Digits of the longest number in a value."""
    if isinstance(value, dict):
        return max(map(digits, value.values()), default=0)
    if isinstance(value, list):
        return max(map(digits, value), default=0)
    return len(str(abs(value))) if type(value) is int else 0


@given(values, st.integers(1, 9))
def test_values_and_digits_are_counted_however_the_text_is_cut(value: Any, size: int) -> None:
    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    scan = json_size._Scan()
    assert sum(scan.take(text[i : i + size]) for i in range(0, text.size, size)) == weight(value)
    assert scan.longest_number == digits(value)
    assert scan.num_numbers == len(NUMBER.findall(STRING.sub(b"", text.tobytes())))


def test_numbers_alone_are_not_refused_for_their_count_where_they_may_be_read_apart() -> None:
    assert is_quickly_read(b"1," * MAX_VALUES, "thing")
    assert not is_quickly_read(b"1," * (MAX_VALUES + 1), "thing")
    for unit in (b"true,", b"1 ,", b'"a1",'):
        with pytest.raises(RequestError, match="too many values"):
            is_quickly_read(unit * (MAX_VALUES + 1), "thing")


@pytest.mark.parametrize(
    ("unit", "units"),
    [
        (b"1,", MAX_VALUES),
        (b'"a",', MAX_VALUES),
        (b"[],", MAX_VALUES // 5),
        (b'"k":1,', MAX_VALUES // 5),
        (b'{"a":1},', MAX_VALUES // 9),
        (b"[", MAX_VALUES // 4),
    ],
)
def test_a_text_of_many_values_is_refused_whatever_they_are(unit: bytes, units: int) -> None:
    with pytest.raises(
        RequestError, match=f"thing has too many values: possible are {MAX_VALUES}"
    ) as refused:
        check_json_size(unit * (units + 1), "thing", "field")
    assert (refused.value.status, refused.value.param) == (413, "field")
    check_json_size(unit * units, "thing")


@pytest.mark.parametrize("unit", [b",", b'\\",', b"\\\\[", b"[{:", b"1"])
def test_a_string_of_anything_is_not_refused(unit: bytes) -> None:
    check_json_size(b'{"a": "' + unit * (3 << 20) + b'"}', "thing")


def test_a_number_is_refused_for_its_length() -> None:
    spaces = b" " * MAX_VALUES
    check_json_size(spaces + b"9" * MAX_DIGITS, "thing")
    with pytest.raises(RequestError, match="absurd length") as refused:
        check_json_size(spaces + b"9" * (MAX_DIGITS + 1) + b",", "thing")
    assert refused.value.status == 400
