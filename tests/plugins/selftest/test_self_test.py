"""Reliability of the rule: the seeded simulation detects slowdowns and seldom gives false alarms; the table of the protocol."""

import json
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from collbench.analysis.launches import case_of
from collbench.errors import UsageError
from collbench.gating.allocation import Allocation, CaseTimes
from collbench.gating.baseline import Baseline, CaseGroup, Figures, Scheme, add_all, scheme_of
from collbench.plugins.selftest.self_test import (
    Cluster,
    Noise,
    SelfTestLine,
    TrialSetting,
    default_scheme,
    noises,
    read_noise,
    recorded,
    self_test,
    setting_of,
    simulated,
)
from collbench.results.row import CaseKey
from tests.cli.command import Finished, one_sentence, run_here
from tests.results.rows import make_row

SILENT = Noise((0.0,) * 3, 1, (0.0,) * 3, (0.0,) * 3, 0, 0, 0, 0, 0, 0, 0, 0)
# The lines of the table: no change, one case of large messages, one group of them, all cases, a case by the visible slowdown.
NOTHING, CELL_5, CELL_10, GROUP_2, GROUP_5, ALL_2, TWICE_VISIBLE, HALF_VISIBLE = range(8)


def shares(setting: TrialSetting, trials: int, seed: int) -> list[float]:
    return [each.share for each in self_test(setting, trials, seed)]


def usual(noise: Noise | None = None, *, paired: bool = False) -> TrialSetting:
    return simulated(noise or Noise(), default_scheme(), paired=paired)


def test_the_same_seed_gives_the_same_table_and_intervals_are_valid_at_the_ends() -> None:
    one, again, other = (list(self_test(usual(), 3, seed)) for seed in (4, 4, 5))
    assert one == again
    assert one != other
    assert SelfTestLine("", True, 0, 100).interval == pytest.approx((0, 0.0370), abs=1e-4)
    assert SelfTestLine("", True, 100, 100).interval == pytest.approx((0.9630, 1), abs=1e-4)
    assert SelfTestLine("", True, 50, 100).interval == pytest.approx((0.4038, 0.5962), abs=1e-4)


@pytest.mark.parametrize(("paired", "trials", "bounds"), [
    (False, 60, {NOTHING: (0, 0.05), CELL_5: (0.68, 1), CELL_10: (0.88, 1), GROUP_2: (0.40, 0.90), GROUP_5: (0.93, 1), ALL_2: (0.78, 1),
                 TWICE_VISIBLE: (0.90, 1), HALF_VISIBLE: (0, 0.10)}),
    (True, 24, {NOTHING: (0, 0.08), CELL_5: (0.68, 1), GROUP_2: (0.90, 1), ALL_2: (0.90, 1), HALF_VISIBLE: (0, 0.13)}),
    pytest.param(False, 2000, {NOTHING: (0, 0.006), GROUP_5: (0.98, 1), ALL_2: (0.85, 1)}, marks=pytest.mark.long),
    pytest.param(True, 2000, {NOTHING: (0, 0.005), CELL_5: (0.88, 1)}, marks=pytest.mark.long),
])  # fmt: skip
def test_the_rule_has_the_error_rates_of_the_protocol(paired: bool, trials: int, bounds: dict[int, tuple[float, float]]) -> None:
    """With a baseline and side by side: chance exceeds these bounds in less than one of 1000 runs."""
    found = shares(usual(paired=paired), trials, seed=2 if trials == 2000 else 1)
    assert len(found) == 8
    assert {line: found[line] for line, (low, high) in bounds.items() if not low <= found[line] <= high} == {}


@pytest.mark.long
@pytest.mark.parametrize(("name", "most", "most_paired"), [
    ("bimodal", 0.125, 0.025), ("drift", 0.25, 0.008), ("harsh", 0.225, 0.022), ("missing", 0.012, 0.008), ("wander", 0.05, 0.008),
])  # fmt: skip
def test_harsher_noise_has_the_published_rate_of_false_alarms(name: str, most: float, most_paired: float) -> None:
    """reports/gate-self-test has the rates; chance exceeds these bounds in less than one of 100 runs of 1000 trials."""
    noise = read_noise(noises()[name])
    by_baseline, side_by_side = (next(self_test(usual(noise, paired=paired), 1000, seed=3)).share for paired in (False, True))
    assert by_baseline <= most
    assert side_by_side <= most_paired


def test_without_noise_limits_are_minimal_and_mid_messages_do_where_large_ones_lack() -> None:
    """Minimum limits of large messages: 2 % for a case, 1 % for a group, 1.5 % for all; the same for two stacks."""
    recorded_ones = recorded(of_noise(SILENT, 4, 0))
    for paired in (False, True):
        assert shares(usual(SILENT, paired=paired), 2, seed=0) == [0, 1, 1, 1, 1, 1, 1, 0]
        setting = setting_of(recorded_ones, paired=paired)
        assert (setting.allocations, setting.launches) == (4, 3)
        assert shares(setting, 2, seed=0) == [0, 1, 1, 1, 1, 1, 1, 0]
    scheme = Scheme.of_cases(
        [CaseGroup("mpi", "allreduce", "small"), CaseGroup("mpi", "allreduce", "mid"), CaseGroup("gloo", "allreduce", "mid")]
    )
    names = [each.done for each in self_test(simulated(SILENT, scheme), 1, 0)]
    assert ["mid messages" in name for name in names] == [False, True, True, False, False, False]


# Simulated clusters, and the files that define their noise.


def drawn(noise: Noise) -> Cluster:
    return Cluster.draw(noise, default_scheme(), np.random.default_rng(0))


def test_clusters_without_noise_stay_and_drift_makes_them_slower() -> None:
    scheme = default_scheme()
    assert len(scheme.of) == 336
    assert np.bincount(scheme.classes[scheme.of]).tolist() == [144, 72, 120]
    assert not drawn(SILENT).allocations(3, 2, np.random.default_rng(1)).any()
    of_allocations = {"allocation": (0.5, 0.5, 0.5), "allocation_common": 0.5, "drift": 0.5, "walk": 0.5}
    for noise in (SILENT, replace(SILENT, **of_allocations)):  # which pairs of launches do not have
        pairs = drawn(noise).pairs(2, 5, np.random.default_rng(1))
        assert pairs.shape == (2, 5, 336) and not pairs.any()
    cluster = drawn(replace(SILENT, drift=0.01))
    assert cluster.allocations(3, 1, np.random.default_rng(1), first=6)[:, 0] == pytest.approx([0.07, 0.08, 0.09])
    cluster = drawn(replace(SILENT, walk=0.01))
    whole = cluster.allocations(9, 1, np.random.default_rng(1))
    assert cluster.allocations(3, 1, np.random.default_rng(2), first=6) == pytest.approx(whole[6:])
    assert 0.003 < float(np.abs(np.diff(whole[:, 0])).mean()) < 0.02
    assert (whole == whole[:, :1]).all()


def test_missing_cases_and_two_speeds() -> None:
    cluster = drawn(Noise(missing=0.3))
    assert 0.2 < np.isnan(cluster.allocations(6, 1, np.random.default_rng(1))).mean() < 0.4
    lacking = np.isnan(cluster.pairs(2, 5, np.random.default_rng(1)))
    assert 0.2 < lacking.mean() < 0.4
    assert (lacking == lacking[:, :1]).all()
    # Half of the cases, in a fifth of their launches, by 10 %.
    times = drawn(replace(SILENT, bimodal=0.5, slow_share=0.2, slow_by=0.1)).launches(1, 400, np.random.default_rng(1))[0]
    assert np.unique(times).tolist() == pytest.approx([0, np.log(1.1)])
    shares = (times > 0).mean(axis=0)
    assert 0.4 < (shares > 0).mean() < 0.6
    assert shares[shares > 0].mean() == pytest.approx(0.2, abs=0.02)


def test_noise_files_are_named_read_and_have_defaults(tmp_path: Path) -> None:
    assert list(noises()) == ["bimodal", "drift", "harsh", "missing", "wander"]
    assert read_noise(Path("missing")) == Noise(missing=0.3)
    (tmp_path / "noise.toml").write_text("launch = [0.05, 0.04, 0.02]\nmissing = 0.3\n")
    assert read_noise(tmp_path / "noise.toml") == Noise(launch=(0.05, 0.04, 0.02), missing=0.3)


@pytest.mark.parametrize(("text", "value"), [
    ("launhc = 1", "'launhc'"), ("launch = [1, 2]", "'launch' is [1, 2]"), ("launch = 0.1", "'launch' is 0.1"),
    ("iterations = 0", "'iterations' is 0"), ("drift = -1", "'drift' is -1"), ("drift = nan", "'drift' is nan"),
    ("drift = true", "'drift' is True"), ("drift =", "noise.toml"), (None, "bimodal, drift, harsh, missing, wander"),  # no such file
])  # fmt: skip
def test_an_invalid_noise_file_is_rejected(tmp_path: Path, text: str | None, value: str) -> None:
    if text is not None:
        (tmp_path / "noise.toml").write_text(text)
    with pytest.raises(UsageError) as caught:
        read_noise(tmp_path / "noise.toml")
    assert value in str(caught.value)


# Clusters drawn from recorded allocations: they have the same noise and correlations, and similar results in the self-test.


FEW = [case_of(make_row(64 << 20 << power)) for power in range(4)]
MANY = [
    case_of(make_row(8 << power, operation=operation, backend=backend))
    for operation in ("allreduce", "allgather", "reducescatter", "alltoall") for backend in ("nccl", "gloo", "mpi") for power in range(28)
]  # fmt: skip


def baseline(times: Figures, cases: list[CaseKey]) -> Baseline:
    """[allocations × launches × cases] ln of seconds; NaN is not measured."""
    found = [
        Allocation(
            f"good-{number}", "2026-11-12", len(each), 0, (None,) * len(each), {},
            {case: CaseTimes(tuple(None if np.isnan(value) else float(np.exp(value)) for value in column))
             for case, column in zip(cases, each.T, strict=True)},
        )
        for number, each in enumerate(times)
    ]  # fmt: skip
    return Baseline(Path("base"), found)


def of_noise(noise: Noise, allocations: int, seed: int, cases: list[CaseKey] = MANY) -> Baseline:
    random = np.random.default_rng(seed)
    cluster = Cluster.draw(noise, scheme_of(cases), random)
    between = random.normal(0, 1, (allocations, len(cases))) * cluster.allocation + random.normal(
        0, noise.allocation_common, (allocations, 1)
    )
    return baseline(cluster.launches(allocations, 3, random) + between[:, None, :], cases)


def test_noise_of_pairs_is_that_of_launches_not_of_allocations() -> None:
    found = recorded(baseline(np.full((4, 3, 4), -9.0), FEW))
    assert not found.allocations(3, 5, np.random.default_rng(0)).any()
    assert not found.pairs(2, 5, np.random.default_rng(0)).any()
    assert (found.launches, found.left_out) == (3, 0)
    # Every launch of an allocation is slower or faster by 1 % in all cases: pairs differ in all cases alike.
    found = recorded(baseline(np.tile(np.array([-0.01, 0.0, 0.01])[None, :, None], (4, 1, 4)), FEW))
    pairs = found.pairs(2, 5, np.random.default_rng(0))
    assert pairs.std() > 0.005
    assert pairs == pytest.approx(np.repeat(pairs[..., :1], 4, axis=-1))
    times = np.tile(np.array([0.0, 0.1, 0.2, 0.3])[:, None, None], (1, 3, 4))
    found = recorded(baseline(times, FEW))
    assert found.pairs(2, 5, np.random.default_rng(0)) == pytest.approx(np.zeros((2, 5, 4)), abs=1e-12)
    drawn = found.allocations(2000, 3, np.random.default_rng(0))
    assert drawn.std(axis=0) == pytest.approx([0.129] * 4, rel=0.1)  # the standard deviation of 0, 0.1, 0.2, 0.3 is 0.129
    assert drawn == pytest.approx(np.repeat(drawn[:, :1], 4, axis=1))


def test_it_scatters_as_the_recorded_ones_did_in_cases_groups_and_all_together() -> None:
    """The spread of cases of each class, of groups and of all, within the accuracy of 40 recorded allocations."""
    noise, scheme = Noise(bimodal=0.0, spikes=0.0), scheme_of(MANY)
    drawn = recorded(of_noise(noise, 40, seed=1)).allocations(400, 3, np.random.default_rng(2))
    true = Cluster.draw(noise, scheme, np.random.default_rng(3)).allocations(400, 3, np.random.default_rng(4))
    classes = scheme.classes[scheme.of]
    for each in range(3):
        spreads = [float(np.median(times[:, classes == each].std(axis=0))) for times in (drawn, true)]
        assert spreads[0] == pytest.approx(spreads[1], rel=0.15)
        groups = [float(scheme.medians(times)[:, scheme.classes == each].std(axis=0).mean()) for times in (drawn, true)]
        assert groups[0] == pytest.approx(groups[1], rel=0.25)
    whole = [float(np.median(times, axis=1).std()) for times in (drawn, true)]
    assert whole[0] == pytest.approx(whole[1], rel=0.35)


def test_missing_cases_are_as_frequent_as_in_the_record() -> None:
    times = np.zeros((8, 3, 4))
    times[:4, :, 1] = np.nan
    times[:5, :, 2] = np.nan
    found = recorded(baseline(times, FEW))
    assert (found.left_out, len(found.scheme.of)) == (1, 3)
    lacking = np.isnan(found.allocations(400, 3, np.random.default_rng(0))).mean(axis=0)
    assert lacking == pytest.approx([0, 0.5, 0], abs=0.08)
    times = np.zeros((4, 3, 4))
    times[:, 0, 0] = np.nan
    drawn = recorded(baseline(times, FEW)).allocations(200, 5, np.random.default_rng(0))
    assert np.isfinite(drawn[:, 0]).mean() > 0.95


EACH_ITS_OWN = np.where(np.eye(4)[:, None, :] == 1, 0.0, np.full((4, 3, 4), np.nan))


@pytest.mark.parametrize(("times", "words"), [
    (np.zeros((3, 3, 4)), "base has 3 "), (np.zeros((6, 1, 4)), "base has 0 "), (EACH_ITS_OWN, r"base .* 4 allocations"),
])  # fmt: skip
def test_too_short_a_record_is_rejected(times: Figures, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        recorded(baseline(times, FEW))


@pytest.mark.long
@pytest.mark.parametrize("paired", [False, True])
def test_the_table_of_recorded_allocations_is_near_that_of_the_cluster_they_were_recorded_on(paired: bool) -> None:
    """Six allocations of three launches show little of the noise of groups, and overstate false alarms."""
    found = recorded(of_noise(Noise(), 6, seed=1))
    tables = [
        list(self_test(setting, 500)) for setting in (setting_of(found, paired=paired), simulated(Noise(), found.scheme, paired=paired))
    ]
    nothing, *others = ((here.done, here.share, there.share) for here, there in zip(*tables, strict=True))
    assert nothing[1] <= nothing[2] + 0.035
    for done, here, there in others:
        assert here == pytest.approx(there, abs=0.45 if done == "one group of large messages slower by 2 %" else 0.15), done


def test_the_tables_of_simulated_changes(tmp_path: Path) -> None:
    done = run_here(tmp_path, "gate", "--self-test", "--trials", "4")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[0].startswith("336 ") and "6 allocations of 3 launches" in lines[0]
    assert len(lines) == 2 + 8 and "false alarms" in lines[2]
    done = run_here(tmp_path, "gate", "--self-test", "--trials", "4", "--format", "json")
    first = json.loads(done.stdout.splitlines()[0])
    assert (first["done"], first["wanted"], first["trials"]) == ("nothing", False, 4)
    assert first["percent"] == 25 * first["found"]
    lines = tried(tmp_path, "--paired").stdout.splitlines()
    assert lines[0].startswith("336 ") and "5 pairs" in lines[0]
    assert len(lines) == 10
    found = [json.loads(line) for line in tried(tmp_path, "--noise", "missing", "--format", "json").stdout.splitlines()]
    assert [each["trials"] for each in found] == [2] * 8


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a baseline of five allocations of two launches and three large cases; three have a fourth case."""
    random = np.random.default_rng(0)
    cases = [case_of(make_row(64 << 20 << power)) for power in range(4)]
    add_all(tmp_path / "good", [
        Allocation(
            f"good-{number}", f"2026-11-1{number}", 2, 0, (6e-8, 6e-8), {},
            {case: CaseTimes(tuple(1e-3 * random.normal(1, 0.003, 2))) for case in cases[: 3 if number < 2 else 4]},
        )
        for number in range(5)
    ])  # fmt: skip
    return tmp_path


def tried(folder: Path, *words: str) -> Finished:
    return run_here(folder, "gate", "--self-test", "--trials", "2", *words)


def test_the_noise_of_a_baseline(folder: Path) -> None:
    done = tried(folder, "--baseline", "good")
    lines = done.stdout.splitlines()
    assert done.returncode == 0
    assert lines[0].startswith("3 ") and "5 allocations of 2 launches" in lines[0]
    assert lines[2].split()[:3] == ["nothing", "false", "alarms"]
    assert "10 launches of 5 recorded allocations" in lines[-2] and lines[-1].startswith("1 ")
    found = [json.loads(line) for line in tried(folder, "--baseline", "good", "--paired", "--format", "json").stdout.splitlines()]
    assert [each["wanted"] for each in found[:2]] == [False, True]
    (folder / "short").mkdir()
    (folder / "good" / "good-1.allocation.jsonl").rename(folder / "short" / "good-1.allocation.jsonl")
    assert "short has 1 " in one_sentence(tried(folder, "--baseline", "short"))
