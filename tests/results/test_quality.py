"""The quality of rows: one word by rules, grouped reasons, and how trials count them."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from collbench.machine.peak.ceiling import Ceiling, no_ceiling
from collbench.results.dips import dips, with_dips
from collbench.results.flags import FLAGS
from collbench.results.quality import NOISY, OK, QUALITIES, REMEDIES, RULES, UNRELIABLE, half_width, quality_of, run_quality
from collbench.results.row import Row, Times
from tests.results.rows import make_row, make_times, not_measured, store
from tools.benchmarks.trials import quality as quality_trials


def wide(part: float, **changes: Any) -> Row:
    """A row with a confidence interval of ± `part` of the median."""
    return make_row(time_s=Times(1e-3, 1e-3 * (1 - part), 1e-3 * (1 + part), 9e-4, 2e-3, 3e-3, 4e-3), **changes)


def modes(first: float, second: float, share: float = 0.6) -> Row:
    """A row with two modes, the first of which has `share` of the samples."""
    return make_row(flags=("two_modes",), modes=[{"time_s": first, "share": share}, {"time_s": second, "share": 1 - share}])


@pytest.mark.parametrize(("row", "word", "remedies"), [
    (make_row(), OK, ()), (wide(0.09), OK, ()), (wide(0.11), NOISY, ("time",)), (wide(0.51), UNRELIABLE, ("time",)),
    (wide(0.51, flags=("cpu_shared",)), UNRELIABLE, ("idle", "time")),
    (make_row(flags=("target_missed", "few_samples", "warmup_unsettled", "remeasured", "simulated")), OK, ()),
    (make_row(flags=("cpu_shared",)), NOISY, ("idle",)), (make_row(flags=("drift",)), NOISY, ("idle",)),
    (make_row(flags=("drift",), launches=3), OK, ()), (make_row(flags=("drift",), evidence={"drift": -0.09}), OK, ()),
    (make_row(flags=("drift",), evidence={"drift": -0.11}), NOISY, ("idle",)),
    (make_row(flags=("drift",), evidence={"drift": "x"}), NOISY, ("idle",)), (modes(1e-3, 1.09e-3), OK, ()),
    (modes(1e-3, 1.11e-3), NOISY, ("idle",)), (modes(1e-3, 9e-3, share=0.66), NOISY, ("idle",)), (modes(1e-3, 9e-3, share=0.67), OK, ()),
    (make_row(flags=("two_modes",)), NOISY, ("idle",)),
    (make_row(flags=("two_modes",), modes=[{"time_s": 1e-3, "share": None}, {"time_s": 2e-3, "share": 0.1}]), NOISY, ("idle",)),
    (wide(0.11, flags=("threads_share_cores",)), NOISY, ("threads",)),
    (wide(0.51, flags=("threads_share_cores", "drift")), UNRELIABLE, ("threads",)), (make_row(flags=("threads_share_cores",)), OK, ()),
    (make_row(flags=("threads_share_cores", "cpu_shared")), NOISY, ("idle",)),  # other work
    (make_row(flags=("threads_share_cores", "lossy_path")), NOISY, ("network",)), (make_row(flags=("retransmits",)), OK, ()),
    (make_row(flags=("lossy_path",)), NOISY, ("network",)), (make_row(flags=("port_errors",)), NOISY, ("network",)),
    (make_row(flags=("above_bound",)), UNRELIABLE, ("path",)), (make_row(flags=("oversubscribed",)), UNRELIABLE, ("cores",)),
    (make_row(flags=("budget_exceeded",)), UNRELIABLE, ("time",)), (make_row(wrong=1), UNRELIABLE, ("data",)),
    (make_row(time_s=Times(1e-3, None, None, 9e-4, None, None, None), n=5), NOISY, ("time",)),
    (make_row(time_s=Times(1e-3, None, None, 9e-4, None, None, None), n=2), UNRELIABLE, ("time",)),
])  # fmt: skip
def test_the_quality_of_a_row(row: Row, word: str, remedies: tuple[str, ...]) -> None:
    assert quality_of(row) == (word, remedies)


@pytest.mark.parametrize(("skew_s", "word"), [(0.9e-6, OK), (1.1e-6, NOISY), (None, NOISY)])
def test_the_skew_of_a_barrier_inside_a_host_is_no_noise(skew_s: float | None, word: str) -> None:
    evidence = {} if skew_s is None else {"exit_skew_s": {"p50": skew_s, "p95": skew_s}}
    row = make_row(8, time_s=make_times(1e-6), flags=("skew_limited",), evidence=evidence)
    assert quality_of(row) == (word, () if word == OK else ("skew",))


def test_rows_without_figures_or_intervals_have_no_quality() -> None:
    imported = {"time_s": Times(1e-3, None, None, None, None, None, None), "flags": ("imported",)}
    assert quality_of(not_measured("no GPU")) is quality_of(make_row(**imported)) is None
    assert quality_of(make_row(**{**imported, "wrong": 2})) == (UNRELIABLE, ("data",))
    assert (run_quality([not_measured("no GPU")]).cases, run_quality([]).cases) == (0, 0)


def test_stored_values_that_are_not_numbers_are_no_interval() -> None:
    assert half_width(make_row(time_s=make_times(0.0))) is None
    for value in (None, "x", float("nan")):
        assert half_width(make_row(time_s=replace(make_times(1e-3), ci_low=value))) is None, value


def test_the_rules_name_known_flags_and_remedies_whose_causes_read_the_same_for_one_case_and_for_many() -> None:
    assert {flag for rule in RULES for flag in rule.flags} <= set(FLAGS)
    assert {rule.remedy for rule in RULES} | {"threads"} == set(REMEDIES)  # that one takes the place of others
    assert {rule.word for rule in RULES} <= set(QUALITIES)
    assert not {"them", "they", "it", "their"} & {word for remedy in REMEDIES.values() for word in remedy.cause.split()}


def test_reasons_are_grouped_by_remedy_and_wrong_data_is_named_first() -> None:
    found = run_quality([make_row(), wide(0.2), wide(0.3), make_row(flags=("cpu_shared",)), make_row(wrong=2), not_measured("no")])
    assert (found.ok, found.noisy, found.unreliable, found.word) == (1, 3, 1, NOISY)
    assert [(each.remedy, each.cases) for each in found.reasons] == [("data", 1), ("idle", 1), ("time", 2)]
    assert found.best_remedy == found.reasons[0]


BUSY, FEW, SKEWED = make_row(flags=("cpu_shared",)), wide(0.2), make_row(flags=("skew_limited",))
BUSY_AND_FEW = wide(0.2, flags=("cpu_shared",))


@pytest.mark.parametrize(("rows", "main", "cases"), [
    ([BUSY, FEW, FEW], "idle", 1),  # a third: the other work explains the few samples, too
    ([BUSY, FEW, FEW, FEW], "time", 3), ([make_row()] * 20 + [BUSY, FEW, FEW], "idle", 1),  # rows that are ok do not count
    ([BUSY_AND_FEW, FEW, FEW], "idle", 1), ([BUSY_AND_FEW, BUSY_AND_FEW, FEW, SKEWED, SKEWED], "idle", 2),
    ([FEW, SKEWED, SKEWED], "time", 1), ([SKEWED, SKEWED, SKEWED, FEW], "skew", 3),
    ([make_row(flags=("oversubscribed",)), BUSY, BUSY], "cores", 1), ([make_row(flags=("lossy_path",)), FEW, BUSY], "idle", 1),
    ([make_row(wrong=1), *[BUSY] * 20], "data", 1),  # wrong data is named however few cases have it
])  # fmt: skip
def test_the_main_reason_is_the_cause_and_not_its_effect(rows: list[Row], main: str, cases: int) -> None:
    found = run_quality(rows).best_remedy
    assert (found.remedy, found.cases) == (main, cases)


@pytest.mark.parametrize(("p50", "seconds"), [(1e-3, 10), (0.01, 20), (0.02, 60), (1.0, None)])
def test_the_suggested_time_follows_from_the_samples(p50: float, seconds: int | None) -> None:
    row = make_row(time_s=Times(p50, p50 * 0.75, p50 * 1.25, p50, p50, p50, p50), n=200)
    assert [each.max_time_s for each in run_quality([row]).reasons] == [seconds]


@pytest.mark.parametrize(("n", "half", "iterations"), [(20, 0.25, 200), (2, None, 10), (5000, 0.5, 0)])
def test_more_iterations_are_suggested_where_their_number_was_set(n: int, half: float | None, iterations: int) -> None:
    low, high = (None, None) if half is None else (1 - half, 1 + half)
    row = make_row(time_s=Times(1.0, low, high, 1.0, 1.0, 1.0, 1.0), n=n, stopped="iterations")
    (reason,) = run_quality([row, row, replace(row, stopped="max_time")]).reasons
    assert (reason.max_time_s, reason.iterations) == (None, iterations)


def test_trials_count_the_words_of_rows_and_the_ok_rows_near_other_quiet_launches(tmp_path: Path) -> None:
    for name, median_s in (("quiet-host-allreduce-0", 1e-3), ("quiet-host-allreduce-1", 1.05e-3), ("disturbed-host-allreduce-0", 2e-3)):
        store(tmp_path / name, [make_row(time_s=make_times(median_s))])
    store(tmp_path / "disturbed-host-allreduce-1", [wide(0.6)])
    found = quality_trials.counts(tmp_path)
    (_, quiet), (_, disturbed) = sorted(found.items(), reverse=True)
    assert (quiet.words, quiet.near) == ({OK: 2}, 2)
    assert (disturbed.words, disturbed.near) == ({OK: 1, UNRELIABLE: 1}, 0)
    assert quality_trials.table(found).splitlines()[2:] == [
        "| quiet | one host | nccl | 2 | 2 | 0 | 0 | 100 % |  | 2 of 2 |",
        "| disturbed | one host | nccl | 2 | 1 | 0 | 1 | 50 % | Use a longer `--max-time`: 1 | 0 of 1 |",
    ]


def sharing(spread: Any, **changes: Any) -> Row:
    """A row of Gloo whose threads share two cores with the ranks."""
    evidence = {"threads": {"threads": 8, "cores": 2, "others": 0.02, "spread": spread}}
    return wide(0.3, flags=("threads_share_cores",), backend="gloo", ranks=2, evidence=evidence, **changes)


def test_threads_that_share_cores_are_named_with_what_was_counted_if_it_is_valid() -> None:
    quality = run_quality([sharing(7.0), sharing(2.5), sharing(9.0)])
    cause = "gloo's 8 threads share 2 cores with both ranks: times vary 7-fold, in longer runs, too"
    assert quality.render() == f"3 of 3 cases are noisy. Main reason: {cause}. Use a host with more cores."
    (reason,) = quality.reasons
    assert (reason.remedy, reason.threads and reason.threads.threads, reason.max_time_s) == ("threads", 8, None)
    for spread in (None, "7", float("nan")):
        assert "Main reason: the library's threads share the cores with the ranks." in run_quality([sharing(spread)]).render(), spread


KIB, MIB = 1 << 10, 1 << 20
DISTURBED = Ceiling(kind="measured", bytes_per_s=None, limited_by="memory copy", disturbed=True)
NO_INTERVAL = replace(make_times(1e-3), ci_low=None, ci_high=None)
WIDE = replace(make_times(4 * MIB / 4e9), ci_low=4 * MIB / 7e9)
IN_CACHE: dict[str, Any] = {"ceiling": no_ceiling("the references are measured from 4 MiB on"), "nodes": 1, "device": "cpu"}
LINK = Ceiling(kind="topology", bytes_per_s=12.5e9, limited_by="NIC 1×100 Gb/s", model="ring")


def copied(rate: float, spread: float = 0.01, **changes: Any) -> Ceiling:
    """Memory copy at `rate`, as measured for one size."""
    low, high = rate * (1 - spread), rate * (1 + spread)
    return Ceiling(kind="measured", bytes_per_s=rate, limited_by="memory copy", low_bytes_per_s=low, high_bytes_per_s=high, **changes)


FAST_COPY, SLOW_COPY = copied(20e9), copied(9e9)


def moving(size: int, busbw: float, **changes: Any) -> Row:
    """A row with this bus bandwidth in bytes per second, and an interval of ±1 %."""
    values = {"ranks": 4, "ceiling": LINK, "flags": (), "time_s": make_times(size / busbw), **changes}
    return make_row(size, busbw_bytes_per_s=busbw, algbw_bytes_per_s=busbw, **values)


def dipping(rows: list[Row]) -> list[tuple[int, int]]:
    return [(dip.row.size_bytes, dip.smaller.size_bytes) for dip in dips(rows)]


def test_a_size_that_moves_less_than_a_smaller_one_is_a_dip() -> None:
    rows = [moving(MIB, 6e9), moving(64 * KIB, 4e9), moving(16 * MIB, 3e9), moving(64 * MIB, 11e9)]
    (dip,) = dips(rows)
    assert (dip.row.size_bytes, dip.smaller.size_bytes) == (16 * MIB, MIB)
    assert dip.loss == pytest.approx(1 - (3 / 0.99) / (6 / 1.01), abs=0.005)
    assert [row.flags for row in with_dips(rows)] == [(), (), ("dip",), ()]
    assert with_dips(with_dips(rows)) == with_dips(rows)
    beyond_copy = [moving(MIB, 6e9, ceiling=copied(20e9)), moving(64 * MIB, 2e9, ceiling=copied(12e9))]
    assert dipping(beyond_copy) == [(64 * MIB, MIB)]


@pytest.mark.parametrize("rows", [
    pytest.param([moving(MIB, 6e9), moving(4 * MIB, 5.8e9)], id="within what launches differ by"),
    pytest.param([moving(MIB, 6e9), moving(4 * MIB, 4e9, time_s=WIDE)], id="wide interval"),
    pytest.param([moving(MIB, 6e9), moving(4 * MIB, 3e9, flags=("two_modes",))], id="doubtful row"),
    pytest.param([moving(MIB, 6e9, flags=("state_flip",)), moving(4 * MIB, 3e9)], id="doubtful smaller size"),
    pytest.param([moving(MIB, 6e9), moving(4 * MIB, 3e9, wrong=7)], id="wrong data"),
    pytest.param([moving(MIB, 6e9), moving(4 * MIB, 3e9, time_s=NO_INTERVAL)], id="no interval"),
    pytest.param([moving(64, 6e9), moving(2 * KIB, 3e9)], id="one packet"),
    pytest.param([moving(MIB, 6e9), moving(4 * MIB, 3e9, dtype="bfloat16")], id="another series"),
    pytest.param([moving(MIB, 6e9, ceiling=FAST_COPY), moving(64 * MIB, 3e9, ceiling=SLOW_COPY)], id="memory copy falls alike"),
    pytest.param([moving(MIB, 6e9, ceiling=FAST_COPY), moving(64 * MIB, 3e9, ceiling=DISTURBED)], id="reference disturbed"),
    pytest.param([moving(64 * KIB, 6e9, **IN_CACHE), moving(64 * MIB, 3e9, ceiling=SLOW_COPY, nodes=1, device="cpu")], id="a cache"),
    pytest.param([moving(64 * KIB, 6e9, **IN_CACHE), moving(MIB, 3e9, **IN_CACHE)], id="two caches"),
])  # fmt: skip
def test_what_proves_no_dip(rows: list[Row]) -> None:
    assert dipping(rows) == []
