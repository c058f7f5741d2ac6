"""The CPUs' circumstances, from files as kernels write them."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.measuring.instruments import CpuReading, between, binding, explains_spread, noticeable, now, settings, shared_cores
from collbench.results.row import SharedCores

CPU = min(os.sched_getaffinity(0))


def stat(tmp_path, stolen, user=1000):
    lines = ["cpu  1 2 3 4 5 6 7 8 0 0"] + [f"cpu{cpu} {user} 0 100 5000 10 0 5 {stolen} 0 0" for cpu in os.sched_getaffinity(0)]
    path = tmp_path / f"stat-{stolen}"
    path.write_text("\n".join([*lines, "intr 1 2", "ctxt 5"]))
    return path


def test_stolen_time_is_a_share_of_the_time_of_the_cpus_that_may_be_used(tmp_path):
    before, after = now(stat(tmp_path, 0)), now(stat(tmp_path, 20, user=1180))
    cpus = len(os.sched_getaffinity(0))
    assert (after.stolen - before.stolen, after.ticks - before.ticks) == (20 * cpus, 200 * cpus)
    assert between(before, after).stolen == pytest.approx(0.1)


@pytest.mark.parametrize(("before", "after", "stolen"), [
    (CpuReading(0, 100, 0), CpuReading(4, 200, 0), 0.0),  # fewer ticks than a rounding makes
    (CpuReading(0, 100, 0), CpuReading(5, 200, 0), 0.05),
    (CpuReading(0, 0, 0), CpuReading(0, 0, 0), None),  # no /proc
    (CpuReading(9, 900, 0), CpuReading(1, 1000, 0), None),  # a CPU left in between
])  # fmt: skip
def test_what_is_not_known_is_not_zero(before, after, stolen):
    assert between(before, after).stolen == stolen


def test_lost_cores_are_counted_two_percent_are_noticeable_and_nothing_is_reported_without_files(tmp_path):
    assert between(CpuReading(0, 1, 5), CpuReading(0, 2, 9)).preempted == 4
    assert now().preempted >= 0
    assert [noticeable(share) for share in (None, 0.0, 0.02, 0.021)] == [False, False, False, True]
    assert now(tmp_path / "none").ticks == 0
    assert settings(tmp_path, tmp_path / "none") == {"governor": None, "boost": None, "huge_pages": None}


@pytest.mark.parametrize(("files", "boost"), [
    ({"cpufreq/boost": "1"}, True), ({"cpufreq/boost": "0"}, False), ({"intel_pstate/no_turbo": "1"}, False),
    ({"intel_pstate/no_turbo": "0"}, True), ({"cpufreq/boost": "?"}, None),
])  # fmt: skip
def test_settings_are_read(tmp_path, files, boost):
    for name, text in {**files, f"cpu{CPU}/cpufreq/scaling_governor": "powersave\n", "enabled": "always [madvise] never\n"}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert settings(tmp_path, tmp_path / "enabled") == {"governor": "powersave", "boost": boost, "huge_pages": "madvise"}


@pytest.mark.parametrize(("cpus", "said"), [
    ([["a 0"], ["a 1"]], "each rank on 1 CPU of its own"), ([["a 0", "a 1"], ["b 0", "b 1"]], "each rank on 2 CPUs of its own"),
    ([["a 0", "a 1"], ["a 0", "a 1"]], "ranks share 2 CPUs"), ([["a 0"], ["a 0"]], "ranks share 1 CPU"), ([["a 0"]], "ranks share 1 CPU"),
])  # fmt: skip
def test_how_ranks_are_bound(cpus, said):
    assert binding(cpus) == said


@given(st.binary(max_size=300))
def test_any_stat_file_is_read(tmp_path_factory, garbage):
    path = tmp_path_factory.mktemp("proc") / "stat"
    path.write_bytes(garbage)
    assert now(path).stolen >= 0


def test_threads_count_if_they_run_for_a_hundredth_of_the_time(tmp_path):
    for name, ran in (("7", 600), ("8", 9_000_000_000), ("9", 1)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "schedstat").write_text(f"{ran} 5 3\n")
    (tmp_path / "ended").mkdir()
    read = now(tasks=str(tmp_path))
    assert read.run_ns == {"7": 600, "8": 9_000_000_000, "9": 1}
    before = CpuReading(0, 100, 0, 50, {"7": 10**9, "8": 0}, 1.0)
    after = CpuReading(0, 500, 0, 350, {"7": 10**9 + 19_000_000, "8": 1_500_000_000, "9": 30_000_000}, 3.0)
    span = between(before, after)
    assert (span.threads, span.own_s, span.working_s, span.seconds) == (2, pytest.approx(1.53), pytest.approx(3.0), 2.0)


def span(threads, own_s, working_s, seconds=2.0):
    return {"threads": threads, "own_s": own_s, "working_s": working_s, "seconds": seconds}


@pytest.mark.parametrize(("spans", "cpus", "spread", "expected", "explains"), [
    # Gloo on an idle machine with 2 cores: four threads of each rank
    ([span(4, 1.8, 3.9), span(4, 1.9, 3.9)], [(0, 1)] * 2, 7.0, SharedCores(8, 2, 0.05, 7.0), True),
    ([span(4, 1.8, 3.9), span(4, 1.9, 3.9)], [(0, 1)] * 2, 1.3, SharedCores(8, 2, 0.05, 1.3), False),  # times hardly vary
    ([span(4, 0.4, 4.0), span(4, 0.4, 4.0)], [(0, 1)] * 2, 7.0, SharedCores(8, 2, 0.8, 7.0), False),  # other work
    ([span(1, 2.0, 4.0), span(1, 2.0, 4.0)], [(0, 1)] * 2, 7.0, SharedCores(2, 2, 0.0, 7.0), False),  # a thread of each rank
    ([span(4, 1.8, 1.9), span(4, 1.9, 2.0)], [(0,), (1,)], 7.0, SharedCores(8, 2, 0.05, 7.0), True),  # each rank on its own core
    ([span(4, 1.8, 9.0), span(4, 1.9, 9.0)], [tuple(range(8))] * 2, 7.0, SharedCores(8, 8, 0.331, 7.0), False),
])  # fmt: skip
def test_threads_of_the_ranks_explain_times_that_vary(spans, cpus, spread, expected, explains):
    found = shared_cores(spans, cpus, spread)
    assert (found, found and explains_spread(found)) == (expected, explains)


def test_without_counted_threads_nothing_is_known():
    assert shared_cores([span(0, 0.0, 4.0), span(4, 2.0, 4.0)], [(0, 1)] * 2, 7.0) is None
    assert shared_cores([span(4, 0.01, 0.02, seconds=0.01)], [(0, 1)], 7.0) is None
