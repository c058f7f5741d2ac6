"""A rank that finishes last is reported, and called slow only where it is; not chance, ties of the clock, exit skew or roots."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray

from collbench.analysis.concerns import FINDING, NOTE, concerns
from collbench.analysis.launches import Launches
from collbench.analysis.stragglers import Compared, Role, SlowLink, compared, histogram, slow_links, stragglers, stragglers_in
from collbench.errors import UsageError
from collbench.machine.peak.ceiling import Ceiling
from collbench.results.folder import RunFolder
from collbench.results.reader import Run, read_run
from collbench.results.row import Row, StartSkew
from collbench.stats.median import median
from tests.results.rows import make_row, not_measured

HOSTS = [{"rank": rank, "host": f"node{rank + 4:02d}"} for rank in range(8)]


class InMemory(Run, frozen=True):
    """A run with arrays in memory."""

    def array(self, row: Row, name: str) -> NDArray[Any]:
        return np.asarray(self.info["arrays"][row.size_bytes][name])


def slowed(ranks: int, number: int, rank: int | slice = 0, factor: float = 1.0, samples: int = 100) -> list[NDArray[np.float64]]:
    """The seconds of so many cases of like ranks, of which these take longer by the factor."""
    cases = [noisy(np.random.default_rng(seed), ranks, samples) for seed in range(number)]
    for case in cases:
        case[rank] *= factor
    return cases


def run_of(times: list[NDArray[np.float64]], **changes: Any) -> Run:
    """A run with one case per array of seconds [ranks × samples]."""
    rows, arrays = [], {}
    for power, each in enumerate(times, start=3):
        known = {"ranks": len(each), "n": each.shape[1], "n_eff": median(each.max(axis=0)).n_eff}
        rows.append(make_row(1 << power, **{**known, **changes}))
        arrays[1 << power] = {"slowest_rank": each.argmax(axis=0).astype(np.int32), "rank_p50_s": np.median(each, axis=1)}
    return InMemory(Path("run"), {"arrays": arrays, "rank_map": HOSTS}, rows)


def noisy(rng: np.random.Generator, ranks: int, samples: int = 100, sigma: float = 0.05, rho: float = 0.0) -> NDArray[np.float64]:
    """Seconds of like ranks around 100 µs: each with noise of its own and noise that all share, both autocorrelated."""
    fresh = rng.normal(size=(ranks + 1, samples))
    noise = np.empty_like(fresh)
    noise[:, 0] = fresh[:, 0]
    for at in range(1, samples):
        noise[:, at] = rho * noise[:, at - 1] + np.sqrt(1 - rho**2) * fresh[:, at]
    return np.asarray(1e-4 * np.exp(sigma * (noise[:-1] + noise[-1])))


def test_a_rank_that_ends_last_is_reported_with_its_host_its_share_and_by_how_much() -> None:
    cases = [noisy(np.random.default_rng(seed), 4) for seed in range(12)]
    for case in cases[3:]:
        case[3] *= 1.14
    run = run_of(cases)
    (found,) = stragglers(run)
    assert (found.rank, found.host, found.cases, found.of_cases, found.expected) == (3, "node07", 9, 12, 0.25)
    assert found.excess == pytest.approx(0.14, abs=0.01)
    assert found.share == pytest.approx(float(np.mean([np.mean(case.argmax(axis=0) == 3) for case in cases[3:]])))
    assert replace(found, host="").sentence().startswith("rank 3 finishes last")


def test_of_two_ranks_none_is_called_slow_nor_where_all_but_one_are_late() -> None:
    for operation in ("allreduce", "alltoall"):
        (found,) = stragglers(run_of(slowed(2, 6, 0, 1.29), operation=operation))
        assert (found.role, found.other) == (Role.UNKNOWN, "rank 1 (node05)")
    late = slowed(3, 6, slice(2), 1.4, samples=400)
    assert all(each.role is Role.UNKNOWN for each in stragglers(run_of(late, operation="alltoall")))


def test_a_rank_that_is_late_in_all_to_all_while_the_others_are_alike_is_slow() -> None:
    cases = slowed(4, 6, 2, 1.3)
    (found,) = stragglers(run_of(cases, operation="alltoall"))
    assert (found.rank, found.role) == (2, Role.DELAYS)
    assert [each.role for each in stragglers(run_of(cases))] == [Role.UNKNOWN]


def test_a_rank_that_waits_for_another_is_not_called_slow() -> None:
    """As measured on four hosts of which the third sends at half the rate: it ends first, and the fourth last."""
    ends = np.array([[2.45], [2.44], [1.93], [2.79]])
    cases = [ends * noisy(np.random.default_rng(seed), 4, sigma=0.02) for seed in range(6)]
    for operation in ("allreduce", "alltoall"):
        assert [(each.rank, each.role) for each in stragglers(run_of(cases, operation=operation))] == [(3, Role.UNKNOWN)]


def on_links(folder: Path, rates: list[float | None], ceiling: float) -> Run:
    """A run on one host per rate with the ceiling of a link; the first rank finishes last."""
    run = run_of(slowed(len(rates), 6, 0, 1.3), ceiling=Ceiling("network", ceiling, "NIC eth0, TCP"))
    folder.mkdir()
    interfaces = [{"name": "eth0", "shaped_bits_per_s": rate, "virtual": "veth"} for rate in rates]
    (folder / "topology.json").write_text(json.dumps({"interfaces": interfaces}))
    hosts = [place["host"] for place in HOSTS[: len(rates)]]
    return replace(run, path=folder, info={**run.info, "hosts": hosts})


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_slower_link_explains_the_rank_that_ends_last_and_comes_first(ranks: int, tmp_path: Path) -> None:
    run = on_links(tmp_path / "run", [1e9, 0.8e9, 1e9, 1e9][:ranks], 0.0956e9)
    link = SlowLink("node05", "eth0", 0.8e9, 1e9)
    assert slow_links(run) == [link]
    (found,) = stragglers(run)
    assert (found.rank, found.role, found.link) == (0, Role.WAITS, link)
    found_concerns = concerns([run], [Launches("run", (run,), run.rows)], [compared(run)], [])
    of_ranks = [each for each in found_concerns if "eth0 of node05" in each.what]
    assert [each.severity for each in of_ranks] == [FINDING, NOTE] and of_ranks[0].what == link.sentence()


@pytest.mark.parametrize(("rates", "ceiling"), [([1e9] * 4, 0.12e9), ([1e9, None, 1e9, 1e9], 0.12e9), ([1e10, 1e9, 1e10, 1e10], 20e9)])
def test_equal_and_unknown_links_and_those_that_set_no_ceiling_explain_nothing(rates: list[float | None], ceiling: float, tmp_path: Path):
    run = on_links(tmp_path / "run", rates, ceiling)
    assert slow_links(run) == [] and [each.role for each in stragglers(run)] == [Role.UNKNOWN]


@pytest.mark.parametrize("changes", [
    {"root": 0, "operation": "broadcast"}, {"group": "0-2,1-3", "operation": "p2p_latency"}, {"group": "MOD 2"},
    {"traffic": "skew 4", "operation": "alltoallv"}, {"flags": ("oversubscribed",)}, {"flags": ("skew_limited",)},
    {"evidence": {"exit_skew_s": {"p50": 1e-6, "p95": 3e-5}}}, {"na": "no"}, {"ranks": 1}, {"n_eff": 19.0},
])  # fmt: skip
def test_being_slowest_by_design_or_by_chance_is_no_finding(changes: dict[str, Any]) -> None:
    cases = slowed(2, 4, 1, 1.25)
    assert len(stragglers(run_of(cases))) == 1
    assert stragglers(run_of(cases, **changes)) == []


def test_of_two_like_ranks_each_is_slowest_in_half_the_samples_and_alarms_are_rare() -> None:
    run = run_of(slowed(2, 8))
    assert (stragglers(run), [case.expected for case in compared(run)]) == ([], [0.5] * 8)
    alarms, found = _rates(20, 12, 0.5)
    assert alarms == 0 and found >= 0.9


def test_a_rank_always_a_hair_behind_is_no_straggler() -> None:
    """Slowest in every sample, but by 4 %, or by no more than the clock shows."""
    like = np.full((4, 200), 1e-4) + np.arange(200) % 7 * 1e-6
    hair, clock = like.copy(), np.full((4, 200), 60e-9)
    hair[2] *= 1.04
    clock[2] += 10e-9
    for case in (hair, clock):
        run = run_of([case] * 4, n_eff=200.0)
        assert (histogram(compared(run)), stragglers(run)) == ([(2, 1.0)], [])


def test_ties_of_a_coarse_clock_do_not_blame_the_first_rank() -> None:
    """argmax gives a tie to the lowest rank, which then seems to be the slowest."""
    run = run_of([np.round(noisy(np.random.default_rng(seed), 4, sigma=0.1) * 1e-3 / 2e-8) * 2e-8 for seed in range(6)])
    rank, share = histogram(compared(run))[0]
    assert rank == 0 and share > 0.4 and stragglers(run) == []


def test_several_slow_ranks_come_worst_first() -> None:
    cases = slowed(8, 8)
    for even, odd in zip(cases[::2], cases[1::2], strict=True):
        even[1] *= 1.2
        odd[6] *= 1.4
    assert [(each.rank, each.cases) for each in stragglers(run_of(cases))] == [(6, 4), (1, 4)]


def _rates(runs: int, cases: int, rho: float) -> tuple[float, float]:
    """(false alarms, 10 % slower rank found) in simulated runs of 4 ranks."""
    rng = np.random.default_rng(7)
    alarms = found = 0
    for _ in range(runs):
        times = [noisy(rng, 4, int(rng.choice([60, 200])), float(rng.choice([0.2, 0.1, 0.03])), rho) for _ in range(cases)]
        alarms += bool(stragglers(run_of(times)))
        for each in times:
            each[2] *= 1.1
        found += [each.rank for each in stragglers(run_of(times))] == [2]
    return alarms / runs, found / runs


@pytest.mark.long
@pytest.mark.parametrize(("cases", "rho"), [(1, 0.0), (1, 0.7), (3, 0.9), (12, 0.5), (12, 0.97)])
def test_false_alarms_stay_below_one_percent(cases: int, rho: float) -> None:
    alarms, found = _rates(400, cases, rho)
    assert alarms < 0.01 and (found > 0.93 or rho > 0.5 or cases == 1)


def test_arrays_that_are_missing_or_senseless_are_left_out(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", "allreduce", {"rank_map": [{"rank": 0, "host": 3}, "junk"]})
    good = {"slowest_rank": np.array([0, 1, 1], np.int32), "rank_p50_s": np.array([1e-4, 2e-4])}
    indices = [np.array([0, 2], np.int32), np.array([-1, 1], np.int32), np.zeros((2, 2), np.int32), np.zeros(0, np.int32)]
    slowest = [*indices, np.array([0.0, 1.0])]
    medians = [np.array([1e-4, np.nan]), np.array([1e-4, 0.0]), np.array([1e-4])]
    bad = [{}, *({**good, "slowest_rank": ranks} for ranks in slowest), *({**good, "rank_p50_s": times} for times in medians)]
    for size, arrays in enumerate([good, *bad], start=8):
        folder.append(make_row(size, n_eff=0.0), arrays)
    folder.append(not_measured("no"), {})
    run = read_run(folder.path)
    assert [case.row.size_bytes for case in compared(run)] == [8]
    assert histogram(compared(run)) == [(1, pytest.approx(2 / 3)), (0, pytest.approx(1 / 3))]
    assert stragglers(run) == []
    with pytest.raises(UsageError):
        run.array(run.rows[1], "slowest_rank")


def test_exit_skew_is_read_as_far_as_it_is_two_numbers() -> None:
    assert StartSkew.of({"exit_skew_s": {"p50": 1e-7, "p95": 3e-7}}) == StartSkew(1e-7, 3e-7, 1)
    for known in (None, [], {"p50": 1e-7}, {"p50": "x", "p95": 1}, {"p50": 1e-7, "p95": 3e-7, "messages": 0}):
        assert StartSkew.of({"exit_skew_s": known}) is None, known
    assert StartSkew.of({}) is None


def case_by_hand(medians_s, slowest=(0,), **row):
    return Compared(make_row(64, **row), np.array(slowest), np.array(medians_s, float))


def test_the_other_ranks_median_is_of_all_but_the_rank():
    assert list(case_by_hand([1.0, 2.0, 10.0, 4.0]).others_s) == [4.0, 4.0, 2.0, 2.0]
    assert list(case_by_hand([1.0, 3.0]).others_s) == [3.0, 1.0]


@pytest.mark.parametrize(("slow", "like", "often"), [
    (["mpi"], [], True), (["mpi"], ["mpi"], False), (["mpi"] * 2, [], True), (["mpi"], ["mpi"] * 3, False),
    (["mpi"] * 2, ["mpi"] * 6, True), (["mpi"] * 2, ["mpi"] * 7, False),
    (["mpi"] * 2, ["nccl"] * 20, True), (["mpi", "nccl"], ["mpi"] + ["nccl"] * 19, False),
])  # fmt: skip
def test_a_rank_is_often_slow_in_several_cases_or_on_one_backend_alone(slow, like, often):
    cases = [case_by_hand([1.0, 2.0], [1] * 100, backend=backend) for backend in slow]
    cases += [case_by_hand([1.0, 1.0], [0, 1] * 50, backend=backend) for backend in like]
    assert [(each.rank, each.cases, each.of_cases) for each in stragglers_in(cases, {})] == [(1, len(slow), len(cases))] * often


@pytest.mark.parametrize(("others", "found"), [(23, [1]), (24, [])])
def test_the_chance_of_a_false_alarm_is_shared_by_all_ranks_and_cases(others, found):
    """At least 70 of 100 samples have the probability 0.001 / 25.5 if the ranks are alike."""
    slow = case_by_hand([1.0, 2.0], [0, 1, 1, 0, 1, 1, 0, 1, 1, 1] * 10)
    like = case_by_hand([1.0] * others, backend="gloo")
    assert [each.rank for each in stragglers_in([slow, like], {})] == found
