"""Messages over TCP, in C and in Python: data arrives in any division; a rank that is gone or silent is named in time."""

import ctypes
import time
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.backends.socket import NativeMessages, PythonMessages, explain, messages_over, native
from collbench.operations.program import NativeCall
from tests.backends.pairs import at_once, linked

pytestmark = pytest.mark.contract

BOTH = ["native", "python"]
LARGE = 6 * 2**20  # more than sockets hold


def messages(kind, link, room=64):
    if kind == "python":
        return PythonMessages(link)
    if native() is None:
        pytest.skip("the native code is not built")
    return NativeMessages(native(), link, room)


def run(call):
    """A call as a loop would run it; OSError for a failure."""
    if not isinstance(call, NativeCall):
        call.function()
        return
    words = [ctypes.c_uint64(word) for word in call.args]
    code = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_uint64] * len(words))(call.pointer)(*words)
    if code:
        raise OSError(code)


def exchange(kind, link, sends, receives):
    """Posts everything and waits for it."""
    x = messages(kind, link)
    for data in receives:
        run(x.call("post_receive", data.ctypes.data, data.nbytes))
    for data in sends:
        run(x.call("post_send", data.ctypes.data, data.nbytes))
    run(x.call("waitall"))


def filled(sizes, seed):
    return [np.random.default_rng([seed, place]).integers(0, 256, size, np.uint8) for place, size in enumerate(sizes)]


def empty(sizes):
    return [np.zeros(size, np.uint8) for size in sizes]


def assert_exchanged(kinds, streams, there, back):
    """Rank 0 sends messages of the sizes `there`, rank 1 those of `back`, all at once."""
    sent, received = (filled(there, 1), filled(back, 2)), (empty(there), empty(back))
    with linked(streams) as (lower, higher):
        ended = at_once(
            lambda: exchange(kinds[0], lower, sent[0], received[1]),
            lambda: exchange(kinds[1], higher, sent[1], received[0]),
        )
    assert ended == [None, None]
    for data, arrived in zip((*sent[0], *sent[1]), (*received[0], *received[1]), strict=True):
        np.testing.assert_array_equal(arrived, data)


@pytest.mark.parametrize("kinds", [("native", "native"), ("python", "python"), ("native", "python")])
@pytest.mark.parametrize("streams", [1, 3])
@pytest.mark.parametrize(("there", "back"), [([1], []), ([LARGE, 3, LARGE], []), ([LARGE, 1, 0, 7], [LARGE + 1, LARGE])])
def test_what_is_sent_arrives(kinds, streams, there, back):
    assert_exchanged(kinds, streams, there, back)


@settings(max_examples=25, deadline=None)
@given(
    kinds=st.tuples(st.sampled_from(BOTH), st.sampled_from(BOTH)),
    streams=st.sampled_from([1, 2, 5, 64]),
    there=st.lists(st.integers(0, 100_003), max_size=5),
    back=st.lists(st.integers(0, 100_003), max_size=5),
)
def test_any_messages_over_any_streams(kinds, streams, there, back):
    assert_exchanged(kinds, streams, there, back)


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("streams", [1, 4])
def test_a_message_after_another_there_and_back(kind, streams):
    (ball,), (came, back) = filled([70_001], 3), empty([70_001, 70_001])
    with linked(streams) as ends:
        first, second = (messages(kind, end) for end in ends)

        def serve():
            run(first.call("send", ball.ctypes.data, ball.nbytes))
            run(first.call("receive", back.ctypes.data, back.nbytes))

        def answer():
            run(second.call("receive", came.ctypes.data, came.nbytes))
            run(second.call("send", came.ctypes.data, came.nbytes))

        assert at_once(serve, answer) == [None, None]
    np.testing.assert_array_equal(came, ball)
    np.testing.assert_array_equal(back, ball)


WAYS = {
    "receive": lambda x, at, size: [x.call("receive", at, size)],
    "send": lambda x, at, size: [x.call("send", at, size)],
    "waitall": lambda x, at, size: [x.call("post_send", at, size), x.call("post_receive", at, size), x.call("waitall")],
}


def failure(kind, link, way):
    """Return the sentence with which a large message over this link fails, as on a row or in an error."""
    data, x = np.zeros(2 * LARGE * len(link.sockets), np.uint8), messages(kind, link)
    try:
        for call in WAYS[way](x, data.ctypes.data, data.nbytes):
            run(call)
    except OSError as error:
        return explain(link, error.args[0]) if kind == "native" else str(error)
    return None


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("streams", [1, 3])
@pytest.mark.parametrize("way", WAYS)
def test_a_rank_that_is_gone_is_named(kind, streams, way):
    with linked(streams) as (link, other):
        other.close()
        assert failure(kind, link, way).startswith("rank 1 (node1, pid 101) closed the connection")


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("streams", [1, 3])
@pytest.mark.parametrize("way", WAYS)
def test_a_rank_that_is_silent_is_named_after_the_deadline(kind, streams, way):
    with linked(streams, deadline_s=0.09) as (link, _):
        began = time.monotonic()
        said = failure(kind, link, way)
        assert "rank 1 (node1, pid 101) for 0.09 s" in said and "--timeout" in said
        assert time.monotonic() - began > 0.08


def test_a_rank_that_goes_in_the_middle_is_named():
    with linked(3) as (link, other):
        piece = np.zeros(1000, np.uint8)

        x = messages("python", other)

        def go():
            run(x.call("send", piece.ctypes.data, piece.nbytes))
            other.close()

        said, _ = at_once(lambda: failure("native", link, "receive"), go)
    assert said.startswith("rank 1 (node1, pid 101) closed the connection")


def test_other_errors_are_the_kernels_words():
    link = SimpleNamespace(peer="rank 1 (node1, pid 101)", deadline_s=9)
    assert explain(link, 113).startswith("No route to host, ") and link.peer in explain(link, 113)


def test_more_than_there_is_room_for_is_refused():
    with linked() as (link, _):
        x, data = messages("native", link, room=1), np.zeros(1, np.uint8)
        run(x.call("post_send", data.ctypes.data, 1))
        with pytest.raises(OSError, match="-3"):
            run(x.call("post_send", data.ctypes.data, 1))


def test_calls_are_native_where_the_code_was_built(monkeypatch):
    with linked() as (link, _):
        assert isinstance(messages_over(link, 2), NativeMessages if native() else PythonMessages)
        monkeypatch.setattr("collbench.backends.socket.native", lambda: None)
        assert isinstance(messages_over(link, 2), PythonMessages)


def test_a_shared_object_that_is_not_there_or_none_is_no_error(monkeypatch, tmp_path):
    monkeypatch.setattr("collbench.backends.socket._NATIVE", tmp_path / "_loop.so")
    assert native.__wrapped__() is None
    (tmp_path / "_loop.so").write_text("not a library")
    assert native.__wrapped__() is None
