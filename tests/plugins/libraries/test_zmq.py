"""The backend "zmq": correct in every case of pairs, shown on the row, rejected with a reason elsewhere; a lost or silent rank is named."""

import dataclasses
import json
import platform
import re
import time
from types import SimpleNamespace

import numpy as np
import pytest
import zmq
from msgspec.structs import replace

from collbench.backends.backend import Available, Unavailable, unsupported_reason
from collbench.backends.registry import DEFAULTS, backend_class, backend_names
from collbench.backends.unavailable import DoesNotLoad, NotInstalled, UnknownVersion
from collbench.errors import RunFailed
from collbench.operations.dtypes import DTYPES
from collbench.operations.registry import operations
from collbench.operations.unsupported import DeviceUnsupported, NoInPlaceForm, OperationUnsupported, OptionUnsupported, PairsOnly
from collbench.plugins.libraries.zmq import QueueLimits, ZmqBackend, ZmqLink, ZmqMessages, joined, window_of
from tests.backends.pairs import at_once, meeting, opened, paired
from tests.cli.command import one_sentence, run
from tests.conftest import sample
from tests.contract.asked import asked_for
from tests.contract.launch import launch
from tests.helpers import make_case

pytestmark = pytest.mark.system

P2P = ["p2p_latency", "p2p_bandwidth", "p2p_bidirectional"]
LARGE = 6 * 2**20  # more than sockets hold


@pytest.fixture
def both():
    backends = opened(ZmqBackend)
    yield backends
    for backend in backends:
        backend.close()


def pair_case(operation="p2p_bandwidth", **changes):
    return make_case("int8", changes.pop("size", 5), operation=operation, backend="zmq", redop=None, **changes)


def messages(group, data):
    return ZmqMessages(group.handle, data)


def call(x, what, data=None):
    x.call(what, *([data.ctypes.data, data.nbytes] if data is not None else [])).function()


def test_it_is_there_and_taken_only_when_asked_for():
    assert ZmqBackend.probe() == Available(f"libzmq {zmq.zmq_version()} by pyzmq {zmq.__version__}, between pairs of ranks")
    assert "zmq" in backend_names() and "zmq" not in DEFAULTS and backend_class("zmq") is ZmqBackend


@pytest.mark.parametrize("found", [(4, 0, 9), (3, 2, 5), (5, 0, 0)])
def test_a_libzmq_that_is_not_known_is_unavailable(monkeypatch, found):
    monkeypatch.setattr(zmq, "zmq_version_info", lambda: found)
    monkeypatch.setattr(zmq, "zmq_version", lambda: ".".join(map(str, found)))
    answer = ZmqBackend.probe()
    assert isinstance(answer, Unavailable) and isinstance(answer.fact, UnknownVersion) and "pyzmq" in answer.remedy
    assert (answer.fact.package, answer.fact.version) == ("libzmq", ".".join(map(str, found)))


def test_asking_for_one_that_is_too_old_is_refused(tmp_path):
    hiding = tmp_path / "hiding"
    hiding.mkdir()
    (hiding / "sitecustomize.py").write_text("import zmq\nzmq.zmq_version_info = lambda: (3, 2, 5)\nzmq.zmq_version = lambda: '3.2.5'\n")
    said = one_sentence(run(tmp_path, "p2p", "--backend", "zmq", "--sizes", "8", env={"PYTHONPATH": str(hiding)}))
    assert "libzmq 3.2.5 " in said and "pip install -U pyzmq" in said


def test_a_pyzmq_that_is_broken_is_one_sentence(monkeypatch):
    monkeypatch.setattr("collbench.plugins.libraries.zmq.find_spec", lambda name: None)
    assert ZmqBackend.probe() == Unavailable.because(NotInstalled("pyzmq", "pip install pyzmq"))
    monkeypatch.setattr("collbench.plugins.libraries.zmq.find_spec", lambda name: True)
    monkeypatch.setitem(__import__("sys").modules, "zmq", None)
    answer = ZmqBackend.probe()
    assert isinstance(answer, Unavailable) and isinstance(answer.fact, DoesNotLoad) and "ModuleNotFoundError" in answer.fact.error


@pytest.mark.parametrize(("operation", "changes", "reason"), [
    ("p2p_latency", {}, None), ("p2p_latency", {"streams": 2}, OptionUnsupported(("--streams",), "zmq", "socket")),
    ("allreduce", {"redop": "sum"}, OperationUnsupported("zmq", "allreduce")), ("sendrecv", {}, PairsOnly("zmq")),
    ("p2p_latency", {"device": "cuda"}, DeviceUnsupported("zmq", "cuda", ("cpu",))),
])  # fmt: skip
def test_it_has_pairs_only(both, operation, changes, reason):
    case = make_case(operation=operation, backend="zmq", **{"redop": None, **changes})
    assert unsupported_reason(both[0], operations()[operation], case) == reason


def test_a_pair_has_a_context_of_its_own_and_has_its_connection(both):
    groups = paired(both, pair_case())
    assert len({group.handle.socket.context for group in groups} | {zmq.Context.instance()}) == 3
    assert all(isinstance(group.handle, ZmqLink) and group.handle.socket.type == zmq.PAIR for group in groups)
    for backend, group in zip(both, groups, strict=True):
        backend.release(group)
    about = both[0].versions()
    assert (about["libzmq"], about["pyzmq"], about["kernel"]) == (zmq.zmq_version(), zmq.__version__, platform.release())
    assert (about["tcp_nodelay"], about["zmq_io_threads"], about["interface"]) == ("1", "1", "lo")
    assert int(about["send_buffer_bytes"]) >= 2048 and int(about["copied_below_bytes"]) == zmq.COPY_THRESHOLD
    assert all(group.handle.socket.closed for group in groups)


def test_several_connections_of_a_pair_are_open_until_they_are_released_or_the_backend_is_closed(both):
    before, after = paired(both, pair_case()), paired(both, pair_case())
    assert not any(group.handle.socket.closed for group in (*before, *after))
    for backend, group in zip(both, before, strict=True):
        backend.release(group)
    assert [group.handle.socket.closed for group in (*before, *after)] == [True, True, False, False]
    for backend in both:
        backend.close()
    assert all(group.handle.socket.closed for group in after)


@pytest.mark.parametrize(
    ("size", "window", "wanted"),
    [(8, None, QueueLimits(6, 6)), (8, 64, QueueLimits(132, 132)), (2**20, 64, QueueLimits(132, 64)), (2**30, 64, QueueLimits(132, 2))],
)
def test_all_that_is_posted_finds_room_and_the_receiver_holds_64_mib_at_most(size, window, wanted):
    assert window_of(pair_case(size=size, window=window)) == wanted


@pytest.mark.parametrize("size", [0, 1, zmq.COPY_THRESHOLD - 1, zmq.COPY_THRESHOLD, LARGE])
def test_what_both_send_at_once_arrives_for_any_size(both, size):
    groups = paired(both, pair_case(size=size, window=3))
    sent = [np.random.default_rng([size, rank]).integers(0, 256, size, np.uint8) for rank in (0, 1)]
    came = [[np.zeros(size, np.uint8) for _ in range(3)] for _ in (0, 1)]

    def go(me):
        x = messages(groups[me], sent)
        for data in came[me]:
            call(x, "post_receive", data)
            call(x, "post_send", sent[me])
        call(x, "waitall")

    assert at_once(lambda: go(0), lambda: go(1)) == [None, None]
    for me in (0, 1):
        for data in came[me]:
            np.testing.assert_array_equal(data, sent[1 - me])


def test_answers_and_memory_that_are_still_sent_arrive(both):
    groups, data, came = paired(both, pair_case()), np.arange(LARGE, dtype=np.uint8), np.zeros(LARGE, np.uint8)
    call(messages(groups[1], data), "send", data)
    both[1].release(groups[1])
    call(messages(groups[0], came), "receive", came)
    np.testing.assert_array_equal(came, data)
    # Unmapped under it, libzmq aborts the process: "Bad address (src/tcp.cpp)".
    groups, kept = paired(both, pair_case()), SimpleNamespace(data=np.ones(8 * LARGE, np.uint8))
    call(messages(groups[1], kept), "send", kept.data)
    size = kept.data.nbytes
    del kept
    came = np.zeros(size, np.uint8)
    call(messages(groups[0], came), "receive", came)
    assert came.all()


def failure(timeout_s, before=lambda groups: None):
    backends = opened(ZmqBackend)  # with a long timeout, in which they meet; then it is short
    groups, data = paired(backends, pair_case()), np.zeros(9, np.uint8)
    link = groups[0].handle
    link.socket.rcvtimeo = int(timeout_s * 1000)
    groups = [
        dataclasses.replace(groups[0], handle=replace(link, control_link=replace(link.control_link, deadline_s=timeout_s))),
        *groups[1:],
    ]
    before(groups)
    began = time.monotonic()
    with pytest.raises(OSError, match="rank 1") as raised:
        call(messages(groups[0], data), "receive", data)
    for backend in backends:
        backend.close()
    return str(raised.value), time.monotonic() - began


def test_silent_and_closed_ranks_and_messages_of_another_size_are_named():
    said, took = failure(0.3)
    assert "rank 1 (node1, pid 101) for 0.3 s" in said and "--timeout" in said
    assert took > 0.2
    said, _ = failure(0.3, lambda groups: groups[1].handle.close())
    assert said.startswith("rank 1 (node1, pid 101) closed the connection")

    def short(groups):
        call(messages(groups[1], None), "send", np.zeros(4, np.uint8))

    assert re.search(r"^received 4 bytes from rank 1 \(node1, pid 101\), expected 9", failure(5, short)[0])


def test_a_foreign_connection_that_comes_first_is_rejected(monkeypatch):
    contexts = [zmq.Context(), zmq.Context()]
    with meeting(timeout_s=20.0) as links:
        beside = at_once(lambda: links[0].connect(1, 1), lambda: links[1].connect(0, 1))

        def foreign_sender():
            port, _ = __import__("struct").unpack("!H16s", beside[0].sockets[0].recv(18))
            with contexts[0].socket(zmq.PAIR) as other:
                other.connect(f"tcp://127.0.0.1:{port}")
                other.send(b"let me in")
                time.sleep(0.2)

        failed, _ = at_once(lambda: joined(contexts[1], links[1].world, beside[1], QueueLimits(4, 4)), foreign_sender)
    assert isinstance(failed, RunFailed)
    assert "(another process connected first)" in str(failed)
    for context in contexts:
        context.destroy(linger=0)


@pytest.mark.system
@pytest.mark.parametrize("n", [2, pytest.param(3, marks=pytest.mark.long)])
def test_exact_over_types_and_sizes(tmp_path, n):
    asked = {"operations": P2P, "sizes": [1, 1003, 300_001], "dtypes": sample(list(DTYPES), 1), "window": 3}
    more = [] if n == 2 else [{**asked, "sizes": [300_001], "mode": "pipelined", "buffers": "rotating"}]
    outcome = launch(tmp_path, "zmq", n, [asked, *more])
    assert outcome.code == 0, outcome.stderr
    assert len(outcome.rows) == len(P2P) * (n + 1) * len(asked["dtypes"])
    for row in outcome.rows:
        assert (row.na, row.checked, row.wrong, row.api, row.ranks) == (None, 1, 0, "zmq", n), row
        assert row.evidence["loop"] == "python" and "python_messages" in row.flags and row.time_s.p50 > 0
        assert row.evidence["libraries"]["libzmq"] == zmq.zmq_version() and row.evidence["libraries"]["tcp_nodelay"] == "1"


@pytest.mark.long
def test_pairs_go_over_it(tmp_path):
    words = ["--backend", "zmq", "--ranks", "3", "--size", "64K", "--max-time", "0.2", "--format", "json"]
    done = run(tmp_path, "pairs", *words, timeout=90)
    assert done.returncode == 0, done.stdout + done.stderr
    actual = json.loads(done.stdout)
    assert (actual["about"]["backend"], actual["about"]["measured"]) == ("zmq", 3)
    rates = [rate for row in actual["bandwidth_bytes_per_s"] for rate in row if rate is not None]
    assert len(rates) == 6 and min(rates) > 0


@pytest.mark.long
def test_the_contract_is_kept_in_every_case(tmp_path):
    """What every backend is asked for: pairs are exact, all else is n/a with a reason, and nothing ends the launch."""
    outcome = launch(tmp_path, "zmq", 2, asked_for("zmq", 2))
    assert outcome.code == 0, outcome.stderr
    done = [row for row in outcome.rows if row.na is None]
    assert {row.operation for row in done} == set(P2P) and {(row.checked, row.wrong) for row in done} == {(1, 0)}
    reasons = {row.na for row in outcome.rows if row.na and row.operation not in P2P}
    assert {OperationUnsupported("zmq", "allreduce").render(), PairsOnly("zmq").render()} <= reasons
    assert {row.na for row in outcome.rows if row.na and row.operation in P2P} == {NoInPlaceForm("p2p_latency").render()}
