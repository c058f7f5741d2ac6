"""The trials of check: which verdicts are false, which bounds are missed, and one real run of a series that continues."""

from dataclasses import replace

import pytest

from tools.benchmarks.trials import checks
from tools.benchmarks.trials.checks import RUNS, Trial, missed_bounds, table
from tools.benchmarks.trials.series import keep, trials_in

OK = Trial("quiet", 0, "OK", 0, "OK: allreduce reaches 80 %", 14.0, 0.1)


@pytest.mark.parametrize(("condition", "outcome", "code", "is_false"), [
    ("quiet", "OK", 0, False), ("busy-4", "OK", 0, False), ("quiet", "SLOW", 1, True), ("busy-2", "SLOW", 1, True),
    ("busy-2", "INCONCLUSIVE", 3, False), ("half-link", "OK", 0, True), ("half-link", "SLOW", 1, False), ("slowed", "OK", 0, True),
    ("slowed", "INCONCLUSIVE", 3, False), ("slowed", "BROKEN", 4, True), ("slowed", "INCONCLUSIVE", 0, True),
])  # fmt: skip
def test_a_verdict_is_false_where_it_is_not_true(condition, outcome, code, is_false):
    assert replace(OK, condition=condition, outcome=outcome, code=code).is_false is is_false


def test_bounds_and_counts():
    quiet = [replace(OK, number=number) for number in range(18)]
    undecided = [replace(OK, number=18 + number, outcome="INCONCLUSIVE", code=3) for number in range(2)]
    assert missed_bounds([*quiet, *undecided]) == []
    assert missed_bounds([*quiet[1:], *undecided, undecided[0]]) == ["only 17 of 20 quiet runs are OK"]
    wrong = replace(OK, condition="slowed", number=5)
    assert missed_bounds([*quiet, wrong]) == ["slowed 5 is OK"]
    lines = table([*quiet, *undecided, wrong]).splitlines()
    assert lines[2] == "| quiet | 20 | 18 | 0 | 2 | 0 | 0 | 14 to 14 | 0.1 to 0.1 |"
    assert lines[3] == "| slowed | 1 | 1 | 0 | 0 | 0 | 1 | 14 to 14 | 0.1 to 0.1 |"
    assert lines[-1] == "- slowed 5 (exit code 0): OK: allreduce reaches 80 %"
    assert sum(RUNS.values()) == 200


def test_a_series_goes_on_where_it_was_and_runs_in_parts(tmp_path, monkeypatch):
    played = []

    def play(condition, number, *_):
        played.append((condition, number))
        return replace(OK, condition=condition, number=number)

    monkeypatch.setattr(checks, "play", play)
    keep(tmp_path, replace(OK, condition="busy-1"), checks.readme)
    assert checks.main([str(tmp_path), "--conditions", "busy-1", "quiet", "--runs", "2"]) == 0
    assert played == [("quiet", 0), ("busy-1", 1), ("quiet", 1)]
    assert len(trials_in(tmp_path, Trial)) == 4 and "| quiet | 2 |" in (tmp_path / "README.md").read_text()


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("condition", RUNS)
def test_one_run_of_each_condition_has_no_false_verdict(tmp_path, condition):
    """Without a bound for OK: the machine of a test may be busy."""
    if condition == checks.HALF_LINK:
        pytest.importorskip("torch")
    words = [str(tmp_path), "--conditions", condition, "--runs", "1", "--total-time", "5"]
    checks.main(words)
    (trial,) = trials_in(tmp_path, Trial)
    assert not trial.is_false, trial
