"""The state probe: made by all ranks, absent where a partner is missing; a flip differs from noise."""

import ctypes
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from collbench.measuring import monitored
from collbench.measuring.monitored import FLIP, flipped
from collbench.native.library import StateProbeStruct, library
from tests.control.together import Meeting, together

pytestmark = pytest.mark.skipif(library() is None, reason="the native loop was not built")

PROBING = """
from collbench.measuring.monitored import state_probe
def main(world):
    made = state_probe(world)
    heard = []
    for _ in range(20):
        world.allgather(None, "probing")
        heard.append(made.measure())
    return [made.kind, [one for one in heard if one is not None and not 1e-9 < one < 1e-2]]
"""


@pytest.mark.parametrize(("n", "kinds"), [(1, {"work"}), (2, {"cache line", "work"})])
def test_what_it_hears_is_a_time(tmp_path, n, kinds):
    found = together(PROBING, n, Meeting("ipc", tmp_path), timeout_s=40)
    assert [one.code for one in found] == [0] * n, found
    assert {one.said[0] for one in found} <= kinds and len({one.said[0] for one in found}) == 1
    assert all(one.said[1] == [] for one in found)


def pair(rounds=20, deadline_s=10.0):
    line = (ctypes.c_int64 * 16)()
    make = lambda first: StateProbeStruct(ctypes.addressof(line), first, 0, rounds, int(deadline_s * 1e9))  # noqa: E731
    return line, make(1), make(0)


def play(one, out):
    return library().collbench_ping_pong(ctypes.byref(one), ctypes.c_int64(3), ctypes.c_void_p(out.ctypes.data))


def test_the_ball_goes_to_and_fro_as_often_as_asked():
    line, first, second = pair()
    times = [np.zeros(3, np.int64) for _ in range(2)]
    players = [threading.Thread(target=play, args=player) for player in zip((first, second), times, strict=True)]
    for player in players:
        player.start()
    for player in players:
        player.join()
    assert line[0] == first.base == second.base == 2 * 20 * (3 + 1)
    assert all((out > 0).all() for out in times)


def test_a_partner_that_does_not_come_is_not_waited_for():
    _line, first, _second = pair(deadline_s=0.01)
    out = np.zeros(3, np.int64)
    assert play(first, out) != 0


@pytest.mark.system
def test_without_the_native_loop_there_is_no_state_probe(tmp_path):
    body = """
from collbench.measuring import monitored
def main(world):
    if world.rank == 1:
        monitored.library = lambda: None
    return monitored.state_probe(world) is None
"""
    assert [one.said for one in together(body, 2, Meeting("ipc", tmp_path))] == [True, True]


@pytest.mark.parametrize(("before", "after", "said"), [
    (65e-9, 260e-9, True), (260e-9, 65e-9, True), (80e-9, 91e-9, False), (80e-9, 80e-9 * FLIP, False),
    (None, 65e-9, False), (65e-9, None, False),
])  # fmt: skip
def test_a_flip_is_a_quarter_more_or_less(before, after, said):
    assert flipped(before, after) is said
    assert monitored.FLIP == 1.25


def made_by(monkeypatch, rank, ranks, page=None):
    """The state probe of one of the ranks of a host, with their shared page."""
    mates = [SimpleNamespace(rank=each) for each in range(ranks)]
    monkeypatch.setattr(monitored, "shared_page", lambda world, size: page or bytearray(size))
    return monitored.StateProbe(SimpleNamespace(rank=rank, on_host=lambda host=None: mates, hosts=("a",), oversubscribed=None))


@pytest.mark.parametrize(("ranks", "kind", "seconds"), [(2, "cache line", 100e-9), (1, "work", 4e-6)])
def test_a_round_trip_is_a_block_divided_by_its_round_trips(monkeypatch, ranks, kind, seconds):
    """The clock is made up: each block takes 4 µs, but for one; a block of the cache line has 40 round trips."""

    def fill(*arguments):
        out = np.ctypeslib.as_array(ctypes.cast(arguments[-1], ctypes.POINTER(ctypes.c_int64)), (15,))
        out[:] = 4000
        out[3] = 9_000_000
        return 0

    made = made_by(monkeypatch, 0, ranks)
    monkeypatch.setattr(monitored, "library", lambda: SimpleNamespace(collbench_ping_pong=fill, collbench_work=fill))
    assert (made.kind, made.measure()) == (kind, pytest.approx(seconds))
    monkeypatch.setattr(monitored, "library", lambda: SimpleNamespace(collbench_ping_pong=lambda *_: 1, collbench_work=fill))
    assert (made.measure() is None) == (kind == "cache line")


def test_the_two_ranks_of_a_pair_share_a_cache_line_and_an_odd_rank_has_none(monkeypatch):
    page = bytearray(1024)
    start = ctypes.addressof(ctypes.c_char.from_buffer(page))
    played = []
    ping_pong = lambda ball, *_: played.append((ball._obj.line - start, bool(ball._obj.first))) or 0  # noqa: E731
    monkeypatch.setattr(monitored, "library", lambda: SimpleNamespace(collbench_ping_pong=ping_pong))
    times = [made_by(monkeypatch, rank, 5, page).measure() for rank in range(5)]
    assert played == [(0, True), (0, False), (128, True), (128, False)] and times[4] is None
