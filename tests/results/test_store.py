"""JSON as a run's folder holds it: fast where nothing is strange, and never another value than the careful way gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.results import store
from collbench.results.store import parse_object, plain, to_line

NUMBERS = st.one_of(
    st.integers(-(10**25), 10**25),
    st.floats(),
    st.sampled_from([2**63, 2**63 - 1, -(2**63), 10**18, 1e100, 9.99e99, -1e100, 1e-300, 123456789012345678.5, 0.00012345678901234567]),
)


@given(st.dictionaries(st.text(max_size=6), st.one_of(NUMBERS, st.lists(NUMBERS, max_size=3), st.text(max_size=20)), max_size=5))
@settings(max_examples=60, deadline=None)
def test_the_fast_way_gives_what_the_careful_way_gives(values: dict[str, Any]) -> None:
    text, fast, careful = json.dumps(values).encode(), list[str](), list[str]()
    found = parse_object(text, fast)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "_may_hold_strange_numbers", lambda text: True)
        assert parse_object(text, careful) == found
    assert fast == careful


@pytest.mark.parametrize(
    "text", ["1e100", "1E100", "1e+0100", "-1e999", "9223372036854775808", "-9223372036854775808", "1" * 101 + ".5", "NaN", "-Infinity"]
)
def test_what_no_measurement_gives_is_unknown(text: str) -> None:
    unknown: list[str] = []
    assert parse_object(f'{{"x":{text}}}'.encode(), unknown) == {"x": None}
    assert unknown == [text]


def test_what_json_cannot_hold_becomes_what_it_can() -> None:
    strange = {"a": float("nan"), "b": [float("inf"), 1.5, np.float64(2.5), np.int64(3)], 4: {"c": -float("inf")}, "d": {5}, "e": Path("x")}
    assert plain(strange) == {"a": None, "b": [None, 1.5, 2.5, 3], "4": {"c": None}, "d": [5], "e": "x"}
    assert json.loads(to_line(strange)) == plain(strange)


@pytest.mark.parametrize("open_, close", ["[]", ('{"x":', "}")])
def test_a_file_may_be_so_deep_and_no_deeper(open_: str, close: str) -> None:
    def nested(depth: int) -> bytes:
        return b'{"x":' + open_.encode() * depth + b"1" + close.encode() * depth + b"}"

    assert parse_object(nested(store._DEEPEST - 1))
    with pytest.raises(ValueError, match="levels deep"):
        parse_object(nested(store._DEEPEST + 1))
