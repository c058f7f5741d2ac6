"""The CPUs' circumstances, from files as kernels write them."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.measure.instruments import CpuReading, between, binding, noticeable, now, settings

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


def test_two_percent_are_noticeable():
    assert [noticeable(share) for share in (None, 0.0, 0.02, 0.021)] == [False, False, False, True]


def test_lost_cores_are_counted():
    assert between(CpuReading(0, 1, 5), CpuReading(0, 2, 9)).preempted == 4
    assert now().preempted >= 0


def test_a_host_without_these_files_reports_nothing(tmp_path):
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
    ([["a 0"], ["a 1"]], "each rank on 1 CPU of its own"),
    ([["a 0", "a 1"], ["b 0", "b 1"]], "each rank on 2 CPUs of its own"),
    ([["a 0", "a 1"], ["a 0", "a 1"]], "ranks share 2 CPUs"),
    ([["a 0"], ["a 0"]], "ranks share 1 CPU"),
    ([["a 0"]], "ranks share 1 CPU"),
])  # fmt: skip
def test_how_ranks_are_bound(cpus, said):
    assert binding(cpus) == said


@given(st.binary(max_size=300))
def test_any_stat_file_is_read(tmp_path_factory, garbage):
    path = tmp_path_factory.mktemp("proc") / "stat"
    path.write_bytes(garbage)
    assert now(path).stolen >= 0
