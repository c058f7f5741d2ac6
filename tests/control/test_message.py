"""Control messages arrive unchanged; any other input is rejected in bounded memory."""

from __future__ import annotations

import json
import random
import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.control.wire import (
    MOST_JSON_BYTES,
    MOST_RAW_PARTS,
    PIECE_BYTES,
    SHAPES,
    Malformed,
    Message,
    MessageKind,
    _parts,
    entries,
    parsed,
)
from tests.control.noise import frames_of, heard, noise

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
RAW = st.lists(st.binary(max_size=200) | st.integers(0, 3 * PIECE_BYTES).map(bytes), max_size=5)


def carried(frames: list[Any]) -> list[bytes]:
    return [bytes(frame) for frame in frames]


@settings(max_examples=40, deadline=None)
@given(JSON, RAW, st.integers(0, 10**18 - 1))
def test_a_message_comes_back_as_it_was(value: Any, raw: list[bytes], step: int) -> None:
    frames = carried(Message(MessageKind.ANSWER, step, value, raw).frames())
    found = parsed(frames)
    assert (found.kind, found.step, found.body, [bytes(part) for part in found.raw]) == (MessageKind.ANSWER, step, value, raw)
    assert max(map(len, frames)) <= PIECE_BYTES


def test_what_ranks_report_comes_back_by_rank() -> None:
    big = bytes(range(256)) * 1000
    message = parsed(carried(Message(MessageKind.VALUES, 3, [[4, "a", 1], [5, None, 0], [6, [1], 2]], [big, b"", b"x"]).frames()))
    assert [(rank, value, [bytes(part) for part in parts]) for rank, value, parts in entries(message, {4, 5, 6})] == [
        (4, "a", [big]),
        (5, None, []),
        (6, [1], [b"", b"x"]),
    ]


@pytest.mark.parametrize("ranks", [set(), {4}, {5, 6}])
def test_no_rank_sends_for_others(ranks: set[int]) -> None:
    with pytest.raises(Malformed, match="another connection"):
        entries(Message(MessageKind.VALUES, 1, [[4, None, 0], [5, None, 0]]), ranks)


@pytest.mark.parametrize("parts", [0, 2, 10**18])
def test_all_parts_must_have_been_announced(parts: int) -> None:
    with pytest.raises(Malformed, match="1 parts instead"):
        entries(Message(MessageKind.VALUES, 1, [[4, None, parts]], [b"x"]), {4})


@pytest.mark.in_turn
def test_ten_thousand_ranks_fit_into_one_message_and_are_packed() -> None:
    members = [{"rank": rank, "host": f"node{rank // 8:05}", "pid": 4000 + rank, "cpus": list(range(256))} for rank in range(10_000)]
    assert len(json.dumps(members)) < MOST_JSON_BYTES
    frames = carried(Message(MessageKind.ANSWER, 0, members).frames())
    assert sum(map(len, frames)) < 1 << 20
    assert parsed(frames).body == members


HELLO = b'j[[1,{"host":"a"},0]]'
REFUSED: dict[str, list[bytes]] = {
    "nothing": [],
    "too few": [b"hello", b"0"],
    "no such kind": [b"shell", b"0", b"[5]", b"jnull"],
    "no step": [b"bye", b"x", b"[5]", b"jnull"],
    "a negative step": [b"bye", b"-1", b"[5]", b"jnull"],
    "a step without end": [b"bye", b"9" * 19, b"[5]", b"jnull"],
    "sizes that are none": [b"bye", b"0", b"{}", b"jnull"],
    "sizes that lie": [b"bye", b"0", b"[6]", b"jnull"],
    "sizes that are negative": [b"bye", b"0", b"[6,-1]", b"jnull"],
    "sizes that are true": [b"bye", b"0", b"[true]", b"j"],
    "too many parts": [b"bye", b"0", json.dumps([5] + [0] * (MOST_RAW_PARTS + 1)).encode(), b"jnull"],
    "no JSON": [b"bye", b"0", b"[2]", b"j{"],
    "neither plain nor packed": [b"bye", b"0", b"[4]", b"null"],
    "a pickle": [b"tell", b"0", b"[4]", b"\x80\x04N."],
    "no UTF-8": [b"tell", b"0", b"[4]", b'j"\xff"'],
    "a number without end": [b"tell", b"0", b"[5001]", b"j" + b"1" * 5000],
    "deep": [b"tell", b"0", b"[60001]", b"j" + b"[" * 60_000],
    "a frame that is too long": [b"tell", b"0", f"[{PIECE_BYTES + 1}]".encode(), b"j" + b" " * PIECE_BYTES],
    "packed and cut off": [b"tell", b"0", b"[9]", b"z" + zlib.compress(b"[1,2,3,4,5,6,7,8,9]")[:8]],
    "a rank that is none": [b"hello", b"0", b"[19]", b'j[[-1,{"host":""},0'[:19]],
    "a hello of another kind": [b"hello", b"0", b"[3]", b"j{}"],
    "a hello without facts": [b"hello", b"0", b"[13]", b"j[[1,null,0]]"],
    "an exit code that is none": [b"abort", b"0", b"[9]", b'j["",256]'],
    "a sentence that is none": [b"abort", b"0", b"[7]", b"j[[],4]"],
}


@pytest.mark.parametrize("frames", REFUSED.values(), ids=REFUSED)
def test_what_is_no_message_is_refused(frames: list[bytes]) -> None:
    assert parsed([b"hello", b"0", f"[{len(HELLO)}]".encode(), HELLO]).body == [[1, {"host": "a"}, 0]]
    with pytest.raises(Malformed):
        parsed(frames)


def test_json_that_unpacks_without_end_is_refused() -> None:
    packed = b"z" + zlib.compress(b" " * (MOST_JSON_BYTES + 1), 9)
    with pytest.raises(Malformed, match="too long"):
        parsed([b"tell", b"0", f"[{len(packed)}]".encode(), packed])


def test_each_kind_has_a_shape() -> None:
    assert set(SHAPES) == {kind.value for kind in MessageKind}


def test_noise_is_refused_or_is_a_message() -> None:
    """A sample of `python -m benchmarks control_fuzz`."""
    found = [heard(frames) for frames in noise(random.Random(1), 2000)]
    assert {"message", "refused"} == set(found)


def test_noise_begins_with_real_messages() -> None:
    assert all(parsed(carried(frames)) for frames in frames_of())


@pytest.mark.parametrize(
    ("pieces", "sizes", "parts"),
    [
        ([b"abcd", b"xyz"], [4, 3], [b"abcd", b"xyz"]),
        ([b"", b"xyz"], [0, 3], None),
        ([b"abcd", b"xyz", b"w"], [5, 3], None),
        ([b"abc", b"defgh"], [5, 3], None),
        ([b"abcd"], [4, 3], None),
        ([b"abcd", b"xyz"], [4], None),
        ([b"a" * PIECE_BYTES, b"b"], [PIECE_BYTES + 1], [b"a" * PIECE_BYTES + b"b"]),
    ],
)
def test_parts_have_the_sizes_that_were_announced(pieces: list[bytes], sizes: list[int], parts: list[bytes] | None) -> None:
    if parts is None:
        with pytest.raises(Malformed):
            _parts(pieces, sizes)
    else:
        assert _parts(pieces, sizes) == parts


@pytest.mark.parametrize(
    ("kind", "body", "fits"),
    [
        ("abort", ["why", 4], True), ("abort", ["why", 255], True), ("abort", ["why", 0], False), ("abort", ["why", 256], False),
        ("abort", ["why", True], False), ("moved", 0, True), ("moved", True, False), ("moved", -1, False), ("moved", 1 << 24, False),
        ("offer", 0, True), ("offer", -1, False), ("offer", False, False), ("probe", ["10.0.0.1", 65535], True),
        ("probe", ["10.0.0.1", 65536], False), ("say", [[1, None, 0]], True), ("say", [[1, None, -1]], False), ("bye", None, True),
        ("bye", 3, True), ("bye", "3", False), ("gone", [1, {"kind": "process_end"}], True), ("gone", [True, {}], False),
        ("gone", [1, "killed"], False),
    ],
)  # fmt: skip
def test_the_shape_of_each_kind(kind: str, body: Any, fits: bool) -> None:
    assert SHAPES[kind.encode()](body) is fits
