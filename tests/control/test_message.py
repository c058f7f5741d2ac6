"""Control messages arrive unchanged; any other input is rejected in bounded memory."""

import random
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import msgpack, to_builtins

from collbench.control import wire
from collbench.control.diagnosis import RankState
from collbench.control.members import Member
from collbench.control.path import PathReport
from tests.control.noise import REAL, heard, noise

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(st.characters(), max_size=20),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
ARRAYS = st.lists(st.binary(max_size=200) | st.integers(0, 3 * wire.PIECE_BYTES).map(bytes), max_size=5)


def carried(message):
    """The message as another process reads it."""
    pieces = [bytes(piece) for piece in wire.frames(message)]
    assert max(map(len, pieces)) <= wire.PIECE_BYTES
    return wire.parsed(pieces)


@settings(max_examples=40, deadline=None)
@given(JSON, ARRAYS, st.integers(0, 2**60))
def test_a_message_comes_back_as_it_was(value, arrays, step):
    assert wire.decoded(wire.encoded(value)) == value
    answer = wire.StepAnswer(step, "gathering", wire.encoded(value))
    assert carried(answer) == answer
    values = wire.Values(
        step, [wire.Entry(4, "gathering", wire.encoded(value), [memoryview(array) for array in arrays]), wire.Entry(5, "", b"null")]
    )
    assert carried(values) == values and values.size_bytes == sum(map(len, arrays))


@pytest.mark.parametrize("message", REAL, ids=[type(message).__name__ for message in REAL])
def test_each_kind_comes_back(message):
    assert carried(message) == message


def test_a_text_that_utf_8_does_not_have_is_sent_all_the_same():
    assert carried(wire.Abort("the folder a\udcff is gone", 4)) == wire.Abort("the folder a? is gone", 4)
    assert carried(wire.Stack(1, "\ud800" * 5000)) == wire.Stack(1, "?" * 5000)
    values = wire.Values(1, [wire.Entry(1, "\udcff", wire.encoded("\udcff"), [memoryview(b"\xff")])])
    assert carried(values) == wire.Values(1, [wire.Entry(1, "?", wire.encoded("\udcff"), [memoryview(b"\xff")])])
    assert wire.decoded(wire.encoded("\udcff")) == "\udcff"


@pytest.mark.parametrize(("ranks", "own"), [([4], set()), ([4, 5], {4}), ([None], {4})])
def test_no_rank_sends_for_others(ranks, own):
    wire.check_ranks([4, 5], {4, 5, 6})
    with pytest.raises(wire.Malformed, match="another connection"):
        wire.check_ranks(ranks, own)


@pytest.mark.long
def test_ten_thousand_ranks_fit_into_one_message_and_are_packed():
    members = [{"rank": rank, "host": f"node{rank // 8:05}", "pid": 4000 + rank, "cpus": list(range(256))} for rank in range(10_000)]
    answer = wire.StepAnswer(0, "joining", wire.encoded(members))
    assert len(answer.value) < wire.MOST_UNPACKED_BYTES
    assert sum(map(len, wire.frames(answer))) < 1 << 20
    assert carried(answer) == answer


def message_of(*record):
    return b"m" + msgpack.encode(record)


STATE, MEMBER = to_builtins(RankState(3)), {"rank": 1, "host": "a", "local_rank": 0, "pid": 7, "cpus": [0]}
REFUSED = {
    "nothing": [], "an empty frame": [b""], "no such kind": [message_of("shell")], "no kind": [message_of(5)],
    "another version": [b"abort", b"0", b"[9]", b'j["why",4]'], "a step that is none": [message_of("grant", "1")],
    "a negative step": [message_of("grant", -1)], "cut off": [message_of("grant", 1)[:-1]],
    "more than one message": [message_of("grant", 1), b"\0"], "a field too many": [message_of("grant", 1, 2)],
    "neither plain nor packed": [msgpack.encode(["grant", 1])], "a pickle": [b"\x80\x04N."], "no UTF-8": [b"m\x92\xa7stalled\xa1\xff"],
    "deep": [b"m" + b"\x91" * 60_000], "a frame that is too long": [b"m" + b" " * wire.PIECE_BYTES],
    "packed and cut off": [b"z" + zlib.compress(msgpack.encode(["stalled", "a phase"]))[:8]],
    "unpacks without end": [b"z" + zlib.compress(msgpack.encode(["stalled", "x" * wire.MOST_UNPACKED_BYTES]), 9)],
    "a map instead of a list": [message_of("hello", {})], "a rank without facts": [message_of("hello", None, 0)],
    "a rank that is negative": [message_of("hello", {**MEMBER, "rank": -1}, 0)],
    "a rank that is too large": [message_of("hello", {**MEMBER, "rank": 1 << 24}, 0)],
    "a rank that is true": [message_of("moved", True)],
    "an array that is a list": [message_of("values", 1, [[1, "gathering", b"1", [[]]]])],
    "a value that is text": [message_of("values", 1, [[1, "gathering", "1", []]])],
    "an offer of less than nothing": [message_of("offer", 1, -1)], "no such port": [message_of("sendprobe", "10.0.0.1", 65536)],
    "exit code 0": [message_of("abort", "why", 0)], "exit code 256": [message_of("abort", "why", 256)],
    "an exit code that is true": [message_of("abort", "why", True)], "a sentence that is none": [message_of("abort", [], 4)],
    "an end that is a word": [message_of("gone", 1, "killed")], "no state": [message_of("here", [None])],
    "a state that is cut off": [message_of("here", [STATE[:0]])],
    "a state of rank true": [message_of("here", [[True, *STATE[1:]]])],
    "a state with a phase that is a number": [message_of("here", [[3, 0, *STATE[2:]]])],
    "a state that waits 0 times": [message_of("here", [[3, "", 0, *STATE[3:]]])],
    "a state of no time": [message_of("here", [[3, "", False, 0, float("nan"), 0, 0.0, False]])],
    "a state of endless time": [message_of("here", [[3, "", False, 0, 0.0, 0, float("inf"), False]])],
    "a state of a large iteration": [message_of("here", [[3, "", False, 1 << 60, 0.0, 0, 0.0, False]])],
    "no report": [message_of("paths", 1, 0, [None])],
    "a negative report": [message_of("paths", 1, 0, [["a", 1, 2, 3, 4, 5, -1]])],
    "a report that is true": [message_of("paths", 1, 0, [["a", 1, 2, 3, 4, 5, True]])],
    "a report that is too large": [message_of("paths", 1, 0, [["a", 1, 2, 3, 4, 5, 1 << 60]])],
    "a report of a number": [message_of("paths", 1, 0, [[1, 1, 2, 3, 4, 5, 6]])],
}  # fmt: skip


@pytest.mark.parametrize("pieces", REFUSED.values(), ids=REFUSED)
def test_what_is_no_message_is_refused(pieces):
    with pytest.raises(wire.Malformed):
        wire.parsed(pieces)


def test_what_is_refused_differs_from_a_message_in_one_thing():
    assert wire.parsed([message_of("hello", MEMBER, 0)]).member == Member(1, "a", 0, 7, (0,))
    assert wire.parsed([message_of("here", [STATE])]).states == [RankState(3)]
    assert wire.parsed([message_of("paths", 1, 0, [["a", 1, 2, 3, 4, 5, 6]])]).reports == [PathReport("a", 1, 2, 3, 4, 5, 6)]
    assert [wire.parsed([message_of("abort", "why", code)]) for code in (1, 255)] == [wire.Abort("why", 1), wire.Abort("why", 255)]


@pytest.mark.parametrize("text", [b"", b"{", b"\x80\x04N.", b'"\xff"', b"1" * 5000, b"[" * 60_000])
def test_a_value_that_is_not_json_is_refused(text):
    with pytest.raises(wire.Malformed):
        wire.decoded(text)


def test_noise_is_refused_or_is_a_message():
    """A sample of `python -m tools.benchmarks control_fuzz`."""
    found = [heard(pieces) for pieces in noise(random.Random(1), 2000)]
    assert {"message", "refused"} == set(found)
