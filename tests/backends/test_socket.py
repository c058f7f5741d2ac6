"""The backend "socket" for users: correct over any number of streams, which the row shows; rejected with a reason elsewhere."""

import json
import platform
from types import SimpleNamespace

import numpy as np
import pytest

from collbench.backends.backend import Available, Group, Settings, unsupported_reason
from collbench.backends.registry import DEFAULTS, backend_defaults, backend_names
from collbench.backends.socket import Connections, SocketBackend, native
from collbench.operations.dtypes import DTYPES
from collbench.operations.registry import operations
from collbench.operations.sweep import Sweep
from collbench.operations.unsupported import LimitExceeded, OperationUnsupported, OptionUnsupported, PairsOnly
from collbench.results.reader import read_run
from tests.backends.pairs import at_once, opened, paired, ranks
from tests.cli.command import one_sentence, run
from tests.conftest import sample
from tests.contract.launch import launch
from tests.helpers import make_case

pytestmark = pytest.mark.contract

P2P = ["p2p_latency", "p2p_bandwidth", "p2p_bidirectional"]


@pytest.fixture
def both():
    """The backend, open at two ranks."""
    backends = opened(SocketBackend)
    yield backends
    for backend in backends:
        backend.close()


def pair_case(operation="p2p_bandwidth", **changes):
    return make_case("int8", 5, operation=operation, backend="socket", redop=None, **changes)


def test_it_is_there_everywhere_and_taken_only_when_asked_for():
    assert SocketBackend.probe() == Available(f"TCP of Linux {platform.release()}, between pairs of ranks")
    assert "socket" in backend_names() and "socket" not in DEFAULTS


@pytest.mark.parametrize("streams", [None, 1, 3])
def test_a_pair_has_the_cases_streams_until_it_is_released(both, streams):
    groups = paired(both, pair_case(streams=streams))
    assert [group.driven for group in groups] == [(0,), (1,)]
    assert all(isinstance(group.handle, Connections) and len(group.handle.sockets) == (streams or 1) for group in groups)
    for backend, group in zip(both, groups, strict=True):
        backend.release(group)
    assert {each.fileno() for group in groups for each in group.handle.sockets} == {-1}


def test_a_rank_outside_has_no_pair(both):
    assert both[0].pair(Group((0, 1), (0,)), (1,), pair_case()) is None
    assert both[0].pair(None, (0, 1), pair_case()) is None


def test_what_was_not_released_is_closed_in_the_end(both):
    groups = paired(both, pair_case())
    for backend in both:
        backend.close()
    assert {each.fileno() for group in groups for each in group.handle.sockets} == {-1}


def test_several_connections_of_a_pair_are_open_until_they_are_released_or_the_backend_is_closed(both):
    before, after = paired(both, pair_case()), paired(both, pair_case())
    assert len({each.fileno() for group in (*before, *after) for each in group.handle.sockets} - {-1}) == 4
    for backend, group in zip(both, before, strict=True):
        backend.release(group)
    assert {each.fileno() for group in before for each in group.handle.sockets} == {-1}
    assert all(each.fileno() > 0 for group in after for each in group.handle.sockets)
    for backend in both:
        backend.close()
    assert {each.fileno() for group in after for each in group.handle.sockets} == {-1}


def test_versions_show_the_kernel_the_path_and_in_the_end_the_buffers(both):
    before = both[0].versions()
    assert (before["kernel"], before["interface"], before["address"]) == (platform.release(), "lo", "127.0.0.1")
    assert before["congestion_control"] and [int(word) for word in before["tcp_rmem"].split()] and "send_buffer_bytes" not in before
    (group, other) = paired(both, pair_case())
    facts = group.handle.facts()
    both[0].release(group)
    both[1].release(other)
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
    ("allreduce", None, OperationUnsupported("socket", "allreduce")),
    ("sendrecv", None, PairsOnly("socket")),
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
    asked = {"operations": P2P, "sizes": [1, 1003, 300_001], "dtypes": sample(list(DTYPES), 1), "window": 3}
    large = {"operations": ["p2p_bidirectional"], "sizes": [2_000_003], "dtypes": ["int8"], "window": 3, "streams": 3, "mode": "pipelined"}
    outcome = launch(tmp_path, "socket", n, [{**asked, "streams": 1}, {**asked, "streams": 3}, large])
    assert outcome.code == 0, outcome.stderr
    each = len(P2P) * 3 * len(asked["dtypes"])
    assert [row.streams for row in outcome.rows] == [1] * each + [3] * each + [3]
    for row in outcome.rows:
        assert (row.na, row.checked, row.wrong, row.api, row.ranks) == (None, 1, 0, "socket", n), row
        assert row.time_s.p50 > 0
        assert row.evidence["loop"] == ("native" if native() else "python")
        assert {"kernel", "congestion_control", "send_buffer_bytes", "receive_buffer_bytes"} <= row.evidence["libraries"].keys()


@pytest.mark.long
def test_one_stream_has_the_loopback_reference_and_several_have_none(tmp_path):
    done = run(tmp_path, "p2p", "--backend", "socket", "--sizes", "64K", "--format", "json", "--out", "one")
    assert done.returncode == 0, done.stderr
    assert {json.loads(line)["streams"] for line in done.stdout.splitlines()} == {1}
    rows = read_run(tmp_path / "one").rows
    if not any("oversubscribed" in row.flags for row in rows):
        assert {row.ceiling.limited_by for row in rows} == {"one loopback TCP stream", "one loopback TCP stream each way"}
    done = run(tmp_path, "p2p", "--backend", "socket", "--sizes", "64K", "--streams", "3", "--quiet", "--out", "three")
    assert done.returncode == 0, done.stderr
    for row in read_run(tmp_path / "three").rows:
        assert (row.streams, row.wrong, row.percent_of_ceiling) == (3, 0, None)
        if "oversubscribed" not in row.flags:
            assert "not several" in row.ceiling.limited_by


@pytest.mark.parametrize(
    ("word", "said"),
    sample(
        [
            ("0", "argument --streams: '0' is not a whole number from 1 on"),
            ("65", "argument --streams: '65' is too large: use 1 to 64"),
            ("many", "argument --streams: 'many' is not a whole number from 1 on"),
        ],
        1,
    ),
)
def test_a_number_of_streams_that_cannot_be_is_one_sentence(tmp_path, word, said):
    assert one_sentence(run(tmp_path, "p2p", "--backend", "socket", "--streams", word)).startswith(said)


@pytest.mark.long
def test_several_streams_elsewhere_are_not_applicable(tmp_path):
    words = ["--backend", "simulated,socket", "--ranks", "2", "--sizes", "8", "--streams", "4", "--format", "json", "--out", "run"]
    done = run(tmp_path, "p2p", *words)
    assert done.returncode == 0, done.stderr
    assert {(row["backend"], row["na"]) for row in map(json.loads, done.stdout.splitlines())} == {
        ("simulated", OptionUnsupported(("--streams",), "simulated", "socket").render()), ("socket", None),
    }  # fmt: skip


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
    for backend in backends:
        backend.close()
