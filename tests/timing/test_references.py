"""The measured references of a host: memory copies and sums, their pattern, and loopback streams."""

import ctypes
import os
from types import SimpleNamespace

import numpy as np
import pytest
from msgspec.structs import replace

from collbench.backends.backend import Group
from collbench.backends.clock import MonotonicClock
from collbench.backends.host import Buffers
from collbench.control.world import World
from collbench.launch.info import LaunchInfo
from collbench.machine.peak.ceiling import HostPart, Rate
from collbench.measuring import references
from collbench.measuring.loop import Loop, Timed
from collbench.measuring.references import PATTERN, PERIOD, bound, copy_memory, first_wrong, measure_references, repetitions, write_pattern
from collbench.native.library import library
from collbench.operations.builtin.allreduce import ALLREDUCE
from collbench.operations.dtypes import DTYPES
from collbench.operations.program import Program
from tests.control.together import Meeting, together
from tests.helpers import make_case


@pytest.fixture
def alone():
    world = World(LaunchInfo("local", 0, 1, 0, 1, "ipc://", "alone"), 5.0)
    yield world
    world.close()


LOCAL = frozenset({HostPart.COPY, HostPart.SUM})


@pytest.mark.parametrize("dtype", DTYPES)
def test_copy_and_sum_rates_at_every_size(alone, dtype):
    cases = [make_case(dtype, count) for count in (1, 1000, 50_000)]
    rates = measure_references(alone, [(case, LOCAL) for case in cases], 0.01)
    assert set(rates) == {(part, case.size_bytes) for part in LOCAL for case in cases}
    for rate in rates.values():
        assert 0 < rate.low <= rate.value <= rate.high < 1e13


def test_only_the_wanted_parts_are_measured_and_rotating_buffers_rotate(alone):
    rates = measure_references(alone, [(make_case(), frozenset({HostPart.COPY}))], 0.01)
    assert set(rates) == {(HostPart.COPY, 400)} and rates[HostPart.COPY, 400].value > 0
    case = replace(make_case(count=2**18), buffers="rotating")
    assert measure_references(alone, [(case, LOCAL)], 0.01)[HostPart.COPY, 2**20].value > 0
    assert measure_references(alone, [], 0.01) == {}


def test_without_the_native_loop_numpy_copies_and_nothing_is_shared(alone, monkeypatch):
    for module in ("references", "loop"):
        monkeypatch.setattr(f"collbench.measuring.{module}.library", lambda: None)
    wanted = [(make_case("bfloat16"), LOCAL), (make_case(), LOCAL | {HostPart.SHARED, HostPart.DIRECT})]
    rates = measure_references(alone, wanted, 0.01)
    assert rates[HostPart.COPY, 200].value > 0
    assert rates[HostPart.SUM, 400].value > 0


@pytest.mark.parametrize("dtype", ["float64", "float32", "int8", "int32", "int64", "uint8"])
def test_copies_and_sums_are_correct(alone, dtype):
    buffers = Buffers(ALLREDUCE, make_case(dtype, 1001), Group((0,), (0,)), 1)
    buffers.send(0, 0)[:] = np.arange(1001) % 50
    buffers.recv(0, 0)[:] = 7
    partner = references.Partner(alone, LOCAL)
    for part, before in ((HostPart.SUM, 7), (HostPart.COPY, 0)):
        call = partner.call(part, buffers, references.Portion(0, 0, 1001), [])
        Loop(Timed(Program(((call,),)), None, MonotonicClock(), ctypes.c_int64())).run(1)
        assert buffers.recv(0, 0).tolist() == [before + i % 50 for i in range(1001)]


PASSED = """
import ctypes
import numpy as np
from collbench.backends.backend import Group
from collbench.backends.clock import MonotonicClock
from collbench.backends.host import Buffers
from collbench.machine.peak.ceiling import HostPart
from collbench.measuring import references
from collbench.measuring.loop import Loop, Timed
from collbench.operations.builtin.allreduce import ALLREDUCE
from collbench.operations.case import Case
from collbench.operations.dtypes import DTYPES
from collbench.operations.program import Program

def main(world):
    partner = references.Partner(world, frozenset(HostPart))
    case = Case("allreduce", "mpi", DTYPES["int32"], 4 * 100_003, redop="sum")
    buffers = Buffers(ALLREDUCE, case, Group((world.rank,), (0,)), 1)
    there = world.allgather([buffers.send_at(0, 0)], "addresses")[partner.rank if partner.rank is not None else world.rank]
    received = {}
    for part in HostPart:
        buffers.send(0, 0)[:] = np.arange(100_003) + 1000 * world.rank
        buffers.recv(0, 0)[:] = 7
        world.allgather(None, "filled")
        if part not in partner.possible:
            continue
        call = partner.call(part, buffers, references.Portion(0, 0, 100_003), there)
        Loop(Timed(Program(((call,),)), None, MonotonicClock(), ctypes.c_int64())).run(1)
        got = buffers.recv(0, 0) - np.arange(100_003)
        received[part] = int(got[0]) if np.all(got == got[0]) else ("none" if np.all(buffers.recv(0, 0) == 7) else "wrong")
        world.allgather(None, "passed")
    partner.close()
    return [world.rank, partner.rank, received]
"""


@pytest.mark.skipif(library() is None, reason="the native loop was not built")
@pytest.mark.parametrize("n", [2, 3])
def test_every_part_moves_and_adds_the_right_data(tmp_path, n):
    """Ranks 0 and 1 are partners; a third rank has none. One way, the first sends."""
    found = together(PASSED, n, Meeting("ipc", tmp_path))
    assert [one.code for one in found] == [0] * n, found
    for rank, partner, received in (one.said for one in found):
        direct = HostPart.DIRECT in received
        ways = [HostPart.SHARED, HostPart.LOOPBACK, *([HostPart.DIRECT] if direct else [])]
        one_ways = [HostPart.SHARED_ONE_WAY, HostPart.LOOPBACK_ONE_WAY, *([HostPart.DIRECT_ONE_WAY] if direct else [])]
        sent = "none" if partner is None else 1000 * partner
        assert {part: received[part] for part in ways} == dict.fromkeys(ways, sent)
        assert {part: received[part] for part in one_ways} == dict.fromkeys(one_ways, sent if rank == 1 else "none")
        assert received[HostPart.SHARED_SUM] == ("none" if partner is None else 7 + 1000 * partner)


MEASURED = """
from collbench.machine.peak.ceiling import HostPart
from collbench.measuring.references import measure_references
from collbench.operations.case import Case
from collbench.operations.dtypes import DTYPES

def main(world):
    case = Case("allreduce", "mpi", DTYPES["float32"], 1 << 20, redop="sum")
    rates = measure_references(world, [(case, frozenset(HostPart))], 0.002)
    return {part: [rate.low, rate.value, rate.high, rate.disturbed] for (part, _), rate in rates.items()}
"""


@pytest.mark.skipif(library() is None, reason="the native loop was not built")
@pytest.mark.parametrize("n", [2, 3])
def test_references_of_pairs_of_ranks(tmp_path, n):
    found = together(MEASURED, n, Meeting("ipc", tmp_path))
    assert [one.code for one in found] == [0] * n, found
    assert all(one.said == found[0].said for one in found)  # the slowest, at every rank
    assert set(HostPart) - set(found[0].said) <= {HostPart.DIRECT, HostPart.DIRECT_ONE_WAY}  # where the kernel does not permit them
    assert all(1e6 < low <= value <= high < 1e13 for low, value, high, _ in found[0].said.values())


SCRIPTED = """
from types import SimpleNamespace
from collbench.machine.peak.ceiling import HostPart
from collbench.measuring import references
from collbench.operations.case import Case
from collbench.operations.dtypes import DTYPES

def main(world):
    once_s = (0.004, 0.002, 0.008)[world.rank]
    references.Loop = lambda timed: SimpleNamespace(run=lambda n: np.full((1, n), once_s))
    case = Case("allreduce", "mpi", DTYPES["float32"], 8000, redop="sum")
    rates = references.measure_references(world, [(case, frozenset(HostPart))], 0.002)
    return {part: round(rate.value) for (part, _), rate in rates.items()}
"""


def test_the_slowest_rank_that_is_not_idle_has_the_rate(tmp_path):
    """Rank 2, the slowest, has no partner; rank 0 is idle while rank 1 copies from it."""
    for rates in (rank.said for rank in together(SCRIPTED, 3, Meeting("ipc", tmp_path))):
        local = {part: rates.pop(part) for part in LOCAL}
        assert local == dict.fromkeys(LOCAL, 1_000_000)
        assert rates.pop(HostPart.DIRECT_ONE_WAY, 4_000_000) == 4_000_000
        assert rates == dict.fromkeys(rates, 2_000_000) and HostPart.LOOPBACK in rates


def scripted(monkeypatch, seconds):
    """Make every sample of a loop take its entry of `seconds`. Return the numbers of samples of each loop."""
    left = iter(seconds)
    runs = []

    def loop(timed):
        counts = []
        once_s = next(left)
        runs.append(counts)
        return SimpleNamespace(run=lambda n: counts.append(n) or np.full((1, n), once_s))

    monkeypatch.setattr(references, "Loop", loop)
    return runs


@pytest.mark.parametrize(("rates", "expected"), [
    pytest.param([10e9, 10.4e9, 1e9, 1e9, 1e9], (10.2e9, False, 2), id="steady"),
    pytest.param([10e9, 4e9, 10.2e9, 10e9, 1e9], (10.1e9, False, 4), id="disturbed once"),
    pytest.param([10e9, 4e9, 9e9, 3e9, 6e9, 6e9, 6e9], (6e9, True, 5), id="disturbed"),
])  # fmt: skip
def test_a_reference_is_measured_until_two_of_at_most_five_rounds_agree(alone, monkeypatch, rates, expected):
    rounds = scripted(monkeypatch, [400 / rate for rate in rates])
    found = measure_references(alone, [(make_case(), frozenset({HostPart.COPY}))], 0.01)[HostPart.COPY, 400]
    assert (pytest.approx(found.value), found.disturbed, len(rounds)) == expected


@pytest.mark.parametrize(("once_s", "portions", "runs"), [
    (1e-3, 1, [1, 1, 10]), (1e-6, 4, [1, 4, 200]), (0.05, 1, [1, 1, 3]), (0.05, 8, [1, 8, 8]), (0.5, 4, [1]),
])  # fmt: skip
def test_a_rate_is_that_of_whole_portions_and_a_transfer_that_takes_far_too_long_is_not_repeated(
    alone, monkeypatch, once_s, portions, runs
):
    monkeypatch.setattr(references, "_PORTION", 1000)
    rounds = scripted(monkeypatch, [once_s] * 2)
    case = make_case(count=250 * portions + 100)
    found = measure_references(alone, [(case, frozenset({HostPart.COPY}))], 1.0)[HostPart.COPY, case.size_bytes]
    assert (found.value, found.low, found.high) == pytest.approx((1000 / once_s,) * 3)
    assert rounds == [runs] * 2


def test_references_end_in_time_and_show_their_progress(alone):
    rates = measure_references(alone, [(make_case(), LOCAL)], 0.01, limit_s=0.0)
    assert rates == dict.fromkeys(((part, 400) for part in LOCAL), Rate(0.0, 0.0, 0.0, disturbed=True))
    shown = []
    measure_references(alone, [(make_case(count=count), LOCAL) for count in (100, 200)], 0.01, show=shown.append)
    assert shown[:4] == [
        "measuring references 1 of 2…", "measuring references 2 of 2…",
        "measuring references again, 1 of 2…", "measuring references again, 2 of 2…",
    ]  # fmt: skip


def test_messages_beyond_all_caches_have_the_rates_of_the_largest_that_is_measured(alone, monkeypatch):
    monkeypatch.setattr(references, "_LARGEST", 400)
    rates = measure_references(alone, [(make_case(count=count), LOCAL) for count in (100, 200, 300)], 0.01)
    assert rates[HostPart.COPY, 400] == rates[HostPart.COPY, 800] == rates[HostPart.COPY, 1200]


CPUS = sorted(os.sched_getaffinity(0))


@pytest.mark.parametrize("cpus", [CPUS[:1], CPUS])
def test_every_thread_copies_its_share(cpus: list[int]) -> None:
    copied = copy_memory(cpus, 4 * 2**20, 0.05, 20)
    assert copied.n_bytes == 4 * 2**20 // len(cpus) * len(cpus)
    assert copied.wrong is None
    assert len(copied.seconds) >= 1 and np.all(copied.seconds > 0)


def test_a_thread_is_bound_for_a_while_to_its_own_cpus() -> None:
    before = os.sched_getaffinity(0)
    with pytest.raises(OSError, match="Invalid argument"):
        copy_memory([CPUS[0], 4095], 2**20, 0.05, 20)
    assert os.sched_getaffinity(0) == before
    with bound(CPUS[:1]):
        assert os.sched_getaffinity(0) == {CPUS[0]}
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize(
    ("once_s", "seconds", "n"), [(0.01, 1.0, 100), (1e-6, 1.0, 300), (0.3, 1.0, 6), (0.6, 1.0, 1), (5.0, 1.0, 1), (0.0, 1.0, 300)]
)
def test_repetitions_fit_the_time_or_make_an_interval(once_s: float, seconds: float, n: int) -> None:
    assert repetitions(once_s, seconds) == n


@pytest.mark.parametrize("n", [1, 65_521, 200_000])
def test_one_wrong_byte_is_found_wherever_it_is_and_memory_that_was_never_written_is_all_wrong(n: int) -> None:
    target = np.zeros(n, np.uint8)
    assert first_wrong(target) == f"{n} of {n} bytes differ from those that were copied, the first at 0"
    write_pattern(target)
    assert first_wrong(target) is None
    target[n - 1] ^= 0x80
    assert first_wrong(target) == f"1 of {n} bytes differ from those that were copied, the first at {n - 1}"


@pytest.mark.parametrize("shift", [1, 2, 64, 4096, 1 << 20])
def test_a_shift_shows_at_once(shift: int) -> None:
    shifted = np.resize(np.roll(PATTERN, -shift), 1000)
    assert shift % PERIOD and first_wrong(shifted).endswith("the first at 0")
