"""The backend "socket": its connections, its messages in C and in Python, and what users see of it."""

import ctypes
import json
import platform
import socket
import struct
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.addresses import is_own, listen_at
from collbench.backends import socket as socket_links
from collbench.backends.backend import Available, Group, Settings, unsupported_reason
from collbench.backends.registry import DEFAULTS, backend_defaults, backend_names
from collbench.backends.socket import (
    ConnectionMaker,
    Connections,
    NativeMessages,
    PythonMessages,
    SocketBackend,
    explain,
    messages_over,
    native,
)
from collbench.errors import RunFailed
from collbench.operations.dtypes import DTYPES
from collbench.operations.program import NativeCall
from collbench.operations.registry import operations
from collbench.operations.sweep import Sweep
from collbench.operations.unsupported import LimitExceeded, OperationUnsupported, OptionUnsupported, PairsOnly
from collbench.results.reader import read_run
from tests.backends.pairs import PATIENCE_S, at_once, linked, meeting, opened, paired, ranks
from tests.cli.command import run
from tests.conftest import sample
from tests.contract.launch import launch
from tests.helpers import make_case

pytestmark = pytest.mark.contract


@pytest.fixture
def both():
    backends = opened(SocketBackend)
    yield backends
    close(backends)


def close(backends):
    for backend in backends:
        backend.close()


def release(backends, groups):
    for backend, group in zip(backends, groups, strict=True):
        backend.release(group)


def pair_case(operation="p2p_bandwidth", **changes):
    return make_case("int8", 5, operation=operation, backend="socket", redop=None, **changes)


def closed(groups):
    return {stream.fileno() for group in groups for stream in group.handle.sockets} == {-1}


@pytest.mark.parametrize("streams", [None, 1, 3])
def test_a_pair_has_the_cases_streams_until_it_is_released(both, streams):
    assert SocketBackend.probe() == Available(f"TCP of Linux {platform.release()}, between pairs of ranks")
    assert "socket" in backend_names() and "socket" not in DEFAULTS  # taken only when asked for
    groups = paired(both, pair_case(streams=streams))
    assert [group.driven for group in groups] == [(0,), (1,)]
    assert all(isinstance(group.handle, Connections) and len(group.handle.sockets) == (streams or 1) for group in groups)
    release(both, groups)
    assert closed(groups)
    assert both[0].pair(Group((0, 1), (0,)), (1,), pair_case()) is None  # a rank outside has no pair
    assert both[0].pair(None, (0, 1), pair_case()) is None


def test_several_connections_of_a_pair_are_open_until_they_are_released_or_the_backend_is_closed(both):
    before, after = paired(both, pair_case()), paired(both, pair_case())
    assert len({stream.fileno() for group in (*before, *after) for stream in group.handle.sockets} - {-1}) == 4
    release(both, before)
    assert closed(before) and all(stream.fileno() > 0 for group in after for stream in group.handle.sockets)
    close(both)
    assert closed(after)


def test_versions_show_the_kernel_the_path_and_in_the_end_the_buffers(both):
    before = both[0].versions()
    assert (before["kernel"], before["interface"], before["address"]) == (platform.release(), "lo", "127.0.0.1")
    assert before["congestion_control"] and [int(word) for word in before["tcp_rmem"].split()] and "send_buffer_bytes" not in before
    groups = paired(both, pair_case())
    facts = groups[0].handle.facts()
    release(both, groups)
    assert sorted(facts) == ["receive_buffer_bytes", "send_buffer_bytes"] and facts.items() <= both[0].versions().items()


def test_rows_report_where_python_moves_the_bytes(both, monkeypatch):
    assert both[0].flags == (() if native() else ("python_messages",))
    monkeypatch.setattr("collbench.backends.socket.native", lambda: None)
    (alone,) = ranks(1)
    backend = SocketBackend()
    backend.open(alone, Settings())
    backend.close()
    assert backend.flags == ("python_messages",)


@pytest.mark.parametrize(("operation", "streams", "reason"), [
    ("p2p_latency", 64, None),
    ("p2p_latency", 65, LimitExceeded("socket", "streams between two ranks", 64)),
    ("allreduce", None, OperationUnsupported("socket", "allreduce")), ("sendrecv", None, PairsOnly("socket")),
])  # fmt: skip
def test_it_has_pairs_only(both, operation, streams, reason):
    case = make_case(operation=operation, backend="socket", streams=streams, redop="sum" if operation == "allreduce" else None)
    assert unsupported_reason(both[0], operations()[operation], case) == reason


def test_other_backends_have_one_stream(both):
    other = SimpleNamespace(**{name: getattr(both[0], name) for name in ("devices", "steps", "api", "ranks", "passes_messages")},
                            name="mpi", takes_streams=False, takes_tuning=False, supports=lambda *_: None)  # fmt: skip
    reason = OptionUnsupported(("--streams",), "mpi", "socket")
    assert unsupported_reason(other, operations()["p2p_latency"], pair_case("p2p_latency", streams=4)) == reason


@pytest.mark.parametrize(("backend", "asked", "operation", "planned"), [
    ("socket", None, "p2p_latency", 1), ("socket", 1, "p2p_latency", 1), ("socket", 4, "p2p_latency", 4),
    ("mpi", None, "p2p_latency", None), ("mpi", 1, "p2p_latency", None), ("mpi", 4, "p2p_latency", 4), ("socket", None, "allreduce", None),
])  # fmt: skip
def test_cases_show_their_streams_where_there_can_be_several(backend, asked, operation, planned):
    sweep = Sweep((operations()[operation],), (8,), (DTYPES["int8"],), streams=asked, defaults=backend_defaults)
    assert [case.streams for case in sweep.cases(backend, 2)] == [planned]


@pytest.mark.system
@pytest.mark.parametrize("n", [2, *(pytest.param(n, marks=pytest.mark.long) for n in (3, 4))])
def test_exact_over_types_sizes_and_streams(tmp_path, n):
    names = ["p2p_latency", "p2p_bandwidth", "p2p_bidirectional"]
    asked = {"operations": names, "sizes": [1, 1003, 300_001], "dtypes": sample(list(DTYPES), 1), "window": 3}
    large = {"operations": ["p2p_bidirectional"], "sizes": [2_000_003], "dtypes": ["int8"], "window": 3, "streams": 3, "mode": "pipelined"}
    outcome = launch(tmp_path, "socket", n, [{**asked, "streams": 1}, {**asked, "streams": 3}, large])
    assert outcome.code == 0, outcome.stderr
    each = len(names) * 3 * len(asked["dtypes"])
    assert [row.streams for row in outcome.rows] == [1] * each + [3] * each + [3]
    for row in outcome.rows:
        assert (row.na, row.checked, row.wrong, row.api, row.ranks) == (None, 1, 0, "socket", n), row
        assert row.time_s.p50 > 0
        assert row.evidence["loop"] == ("native" if native() else "python")
        assert {"kernel", "congestion_control", "send_buffer_bytes", "receive_buffer_bytes"} <= row.evidence["libraries"].keys()


@pytest.mark.long
def test_one_stream_has_the_loopback_reference_and_several_have_none(tmp_path):
    done = run(tmp_path, "p2p", "--backend", "socket", "--sizes", "4M", "--format", "json", "--out", "one")
    assert done.returncode == 0, done.stderr
    assert {json.loads(line)["streams"] for line in done.stdout.splitlines()} == {1}
    rows = read_run(tmp_path / "one").rows
    if not any("oversubscribed" in row.flags for row in rows):
        assert {row.ceiling.limited_by for row in rows} == {"loopback TCP"}
    done = run(tmp_path, "p2p", "--backend", "socket", "--sizes", "4M", "--streams", "3", "--quiet", "--out", "three")
    assert done.returncode == 0, done.stderr
    for row in read_run(tmp_path / "three").rows:
        assert (row.streams, row.wrong, row.percent_of_ceiling) == (3, 0, None)
        if "oversubscribed" not in row.flags:
            assert "not several" in row.ceiling.limited_by


def test_without_the_native_code_python_moves_the_same(tmp_path, monkeypatch):
    """In one process: both ends of a whole case in Python."""
    monkeypatch.setattr("collbench.backends.socket.native", lambda: None)
    backends = opened(SocketBackend)
    operation, case = operations()["p2p_bidirectional"], pair_case("p2p_bidirectional", window=2, streams=3, in_place=False)
    groups = paired(backends, case)
    made = [(b, b.allocate(operation, case, group, 1), group) for b, group in zip(backends, groups, strict=True)]

    def go(backend, buffers, group):
        buffers.fill(0, for_check=True)
        program = backend.bind(operation, case, group, buffers)
        assert not program.native
        for call in program.slots[0]:
            call.function()
        return buffers.check(0)

    assert at_once(*(lambda one=one: go(*one) for one in made)) == [[None], [None]]
    np.testing.assert_array_equal(made[0][1].recv(0, 0), made[1][1].send(0, 0))
    close(backends)


BOTH = ["native", "python"]
LARGE = 6 * 2**20  # more than sockets hold


def messages(kind, link, room=64):
    if kind == "python":
        return PythonMessages(link)
    if native() is None:
        pytest.skip("the native code is not built")
    return NativeMessages(native(), link, room)


def execute(call):
    """A call as a loop would execute it; OSError for a failure."""
    if not isinstance(call, NativeCall):
        call.function()
        return
    words = [ctypes.c_uint64(word) for word in call.args]
    code = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_uint64] * len(words))(call.pointer)(*words)
    if code:
        raise OSError(code)


def exchange(kind, link, sends, receives):
    x = messages(kind, link)
    for data in receives:
        execute(x.call("post_receive", data.ctypes.data, data.nbytes))
    for data in sends:
        execute(x.call("post_send", data.ctypes.data, data.nbytes))
    execute(x.call("waitall"))


def filled(sizes, seed):
    return [np.random.default_rng([seed, place]).integers(0, 256, size, np.uint8) for place, size in enumerate(sizes)]


def empty(sizes):
    return [np.zeros(size, np.uint8) for size in sizes]


def assert_exchanged(kinds, streams, there, back):
    """Rank 0 sends messages of the sizes `there`, rank 1 those of `back`, all at once."""
    sent, received = (filled(there, 1), filled(back, 2)), (empty(there), empty(back))
    with linked(streams) as (lower, higher):
        ended = at_once(lambda: exchange(kinds[0], lower, sent[0], received[1]), lambda: exchange(kinds[1], higher, sent[1], received[0]))
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
            execute(first.call("send", ball.ctypes.data, ball.nbytes))
            execute(first.call("receive", back.ctypes.data, back.nbytes))

        def answer():
            execute(second.call("receive", came.ctypes.data, came.nbytes))
            execute(second.call("send", came.ctypes.data, came.nbytes))

        assert at_once(serve, answer) == [None, None]
    np.testing.assert_array_equal(came, ball)
    np.testing.assert_array_equal(back, ball)


WAYS = {
    "receive": lambda x, at, size: [x.call("receive", at, size)], "send": lambda x, at, size: [x.call("send", at, size)],
    "waitall": lambda x, at, size: [x.call("post_send", at, size), x.call("post_receive", at, size), x.call("waitall")],
}  # fmt: skip


def failure(kind, link, way):
    """Return the sentence with which a large message over this link fails, as on a row or in an error."""
    data, x = np.zeros(2 * LARGE * len(link.sockets), np.uint8), messages(kind, link)
    try:
        for call in WAYS[way](x, data.ctypes.data, data.nbytes):
            execute(call)
    except OSError as error:
        return explain(link, error.args[0]) if kind == "native" else str(error)
    return None


CLOSED = "rank 1 (node1, pid 101) closed the connection: see the error of that rank"


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("streams", [1, 3])
@pytest.mark.parametrize("way", WAYS)
def test_a_rank_that_is_gone_is_named_and_one_that_is_silent_after_the_deadline(kind, streams, way):
    with linked(streams, deadline_s=0.09) as (link, other):
        began = time.monotonic()
        silent = "no byte went to or came from rank 1 (node1, pid 101) for 0.09 s"
        assert failure(kind, link, way) == f"{silent}: stopped, or the path drops packets; or raise --timeout"
        assert time.monotonic() - began > 0.08
    with linked(streams) as (link, other):
        other.close()
        assert failure(kind, link, way) == CLOSED


def test_a_rank_that_goes_in_the_middle_is_named_and_other_errors_are_the_kernels_words():
    with linked(3) as (link, other):
        piece, x = np.zeros(1000, np.uint8), messages("python", other)

        def go():
            execute(x.call("send", piece.ctypes.data, piece.nbytes))
            other.close()

        said, _ = at_once(lambda: failure("native", link, "receive"), go)
    assert said == CLOSED
    assert explain(link, 113) == "No route to host, between here and rank 1 (node1, pid 101)"


def test_more_than_there_is_room_for_is_refused():
    with linked() as (link, _):
        x, data = messages("native", link, room=1), np.zeros(1, np.uint8)
        execute(x.call("post_send", data.ctypes.data, 1))
        with pytest.raises(OSError, match="-3"):
            execute(x.call("post_send", data.ctypes.data, 1))


def test_calls_are_native_where_the_code_was_built(monkeypatch, tmp_path):
    with linked() as (link, _):
        assert isinstance(messages_over(link, 2), NativeMessages if native() else PythonMessages)
        with monkeypatch.context() as patch:
            patch.setattr("collbench.backends.socket.native", lambda: None)
            assert isinstance(messages_over(link, 2), PythonMessages)
    load = ctypes.CDLL
    monkeypatch.setattr(ctypes, "CDLL", lambda path: load(tmp_path / Path(path).name))
    assert native.__wrapped__() is None
    (tmp_path / "_loop.so").write_text("not a library")
    assert native.__wrapped__() is None


@pytest.mark.parametrize("streams", [1, 3, 64])
def test_streams_come_in_one_order_send_small_messages_at_once_and_block_for_less_than_the_deadline(streams):
    with linked(streams) as ends:
        lower, higher = ends
        assert [each.getpeername() for each in lower.sockets] == [each.getsockname() for each in higher.sockets]
        assert (len(lower.sockets), lower.peer.rank, higher.peer.rank) == (streams, 1, 0)
        for stream in (*lower.sockets, *higher.sockets):
            assert stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) and stream.getblocking()
            for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
                seconds, microseconds = struct.unpack("ll", stream.getsockopt(socket.SOL_SOCKET, option, 16))
                assert seconds + 1e-6 * microseconds == pytest.approx(0.9 * PATIENCE_S, abs=0.02)
        assert [end.deadline_s for end in ends] == [0.9 * PATIENCE_S] * 2  # so that this end reports before the watchdog does
        assert all(int(size) >= 2048 for size in lower.facts().values())


def test_pairs_are_made_again_and_in_any_order():
    with meeting(3) as all_three:
        for a, b in ((0, 1), (1, 2), (0, 2), (0, 1)):
            ends = at_once(lambda a=a, b=b: all_three[a].connect(b, 2), lambda a=a, b=b: all_three[b].connect(a, 2))
            assert [end.peer.rank for end in ends] == [b, a]
            for end in ends:
                end.close()


def greeting(key, source, target, attempt, stream):
    return struct.pack("!16s4I", key, source, target, attempt, stream)


def test_a_stream_begins_with_the_receivers_key_both_ranks_the_attempt_and_its_number():
    with meeting(3) as links:
        _, of_source, of_target = keys_of(links)
        place = links[2].listener.getsockname()
        at_once(lambda: links[1].connect(2, 1), lambda: links[2].connect(1, 1))
        with socket.create_connection(place, timeout=10) as first, socket.create_connection(place, timeout=10) as second:
            for stream, connection in enumerate((first, second)):
                connection.sendall(greeting(of_target, 1, 2, 2, stream))
            links[2].connect(1, 2).close()
            for stream, connection in enumerate((first, second)):
                assert connection.recv(64) == greeting(of_source, 1, 2, 2, stream)


def keys_of(links):
    return [bytes.fromhex(said["key"]) for said in links[0].world.said]


STRANGE_GREETINGS = {  # of other clients than the right rank to rank 1, by the keys of both ranks
    "another launch": lambda first, second: greeting(first, 0, 1, 1, 0),
    "another rank": lambda first, second: greeting(second, 2, 1, 1, 0),
    "an earlier attempt": lambda first, second: greeting(second, 0, 1, 0, 0),
    "another stream": lambda first, second: greeting(second, 0, 1, 1, 1),
    "a browser": lambda first, second: b"GET / HTTP/1.1\r\nHost: node1\r\n\r\n" + bytes(8),
    "half a greeting": lambda first, second: greeting(second, 0, 1, 1, 0)[:-1], "nothing": lambda first, second: b"",
}  # fmt: skip


@pytest.mark.parametrize("strange", STRANGE_GREETINGS.values(), ids=STRANGE_GREETINGS)
def test_a_foreign_connection_is_rejected_and_the_right_rank_accepted(strange, monkeypatch):
    monkeypatch.setattr(socket_links, "_GREETING_S", 0.2)
    with meeting() as links, socket.create_connection(links[1].listener.getsockname(), timeout=10) as stranger:
        stranger.sendall(strange(*keys_of(links)))
        ends = at_once(lambda: links[0].connect(1, 1), lambda: links[1].connect(0, 1))
        assert [end.peer.rank for end in ends] == [1, 0]
        ends[0].sockets[0].sendall(b"x")
        assert ends[1].sockets[0].recv(1) == b"x"
        with suppress(ConnectionResetError):
            assert stranger.recv(1) == b""
        for end in ends:
            end.close()


def test_what_listens_there_must_know_the_key_too():
    with meeting() as (first, second):
        place = second.listener.getsockname()
        second.close()

        with socket.create_server(place) as other:

            def answer():
                with other.accept()[0] as made:
                    made.recv(64)
                    made.sendall(bytes(32))

            refused, _ = at_once(lambda: first.connect(1, 1), answer)
        assert isinstance(refused, RunFailed)
        assert "rejected this rank" in str(refused)


def test_a_rank_that_cannot_be_reached_is_named_and_not_tried_again_and_so_is_one_that_does_not_come():
    with meeting() as (first, second):
        place = second.listener.getsockname()
        second.close()
        refused = at_once(lambda: first.connect(1, 4))[0]
        assert isinstance(refused, RunFailed)
        assert f"rank 1 (node1, pid 101) at 127.0.0.1 port {place[1]}" in str(refused)
        assert "refused" in str(refused) and "firewall" in str(refused)
        with socket.create_server(place):
            assert str(at_once(lambda: first.connect(1, 4))[0]) == str(refused)
    with meeting(timeout_s=0.2) as (_, second):
        missed = at_once(lambda: second.connect(0, 2))[0]
    assert isinstance(missed, RunFailed) and "(0 of 2 streams came within 0.18 s" in str(missed)


def test_an_address_that_is_not_the_hosts_ends_all_ranks_with_the_same_sentence():
    worlds = ranks(2, ("127.0.0.1", "192.0.2.7"))
    said = at_once(*(lambda world=world: ConnectionMaker(world, 10) for world in worlds))
    assert [type(one) for one in said] == [RunFailed, RunFailed]
    assert str(said[0]) == str(said[1])
    assert str(said[0]).startswith("rank 1 (node1, pid 101) cannot listen at 192.0.2.7 ")


@pytest.mark.skipif(not is_own("::1"), reason="no IPv6 here")
def test_six_is_listened_at_as_well():
    with listen_at("::1") as listener:
        assert listener.family == socket.AF_INET6
