"""collbench gate, baseline and history: verdicts, files and exit codes in every style; rejected options."""

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from collbench.gating.baseline import add_all
from collbench.gating.reasons import LaunchesLeftOut, StillSuspected
from collbench.gating.verdict import read_verdict
from tests.cli.command import Finished, one_sentence, run, run_here
from tests.gate.allocations import launch
from tests.gate.histories import nights as upgraded_nights
from tests.gate.histories import upgraded


def night(folder: Path, name: str, factor: float = 1.0, **changes: Any) -> str:
    if not (folder / name).exists():
        launch(folder / name, {8: 1e-6, 64 << 20: 0.1 * factor}, **changes)
    return name


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a baseline of six allocations. Tests share it: none changes a file that another one reads."""
    folder = tmp_path_factory.mktemp("good")
    assert run_here(folder, "baseline", "add", "base", *(night(folder, f"good-{n}") for n in range(6))).returncode == 0
    return folder


def gate(folder: Path, *words: str) -> Finished:
    return run_here(folder, "gate", "--baseline", "base", *words)


def three(folder: Path) -> list[str]:
    """Return three allocations that are slower."""
    return [night(folder, f"slow-{number}", factor) for number, factor in enumerate((1.1, 1.09, 1.11), 1)]


def test_from_passed_to_suspected_to_confirmed(good: Path) -> None:
    done = gate(good, night(good, "same"))
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "passed")
    first = gate(good, "--confirm-suite", "confirm.toml", night(good, "slow-1", 1.1))
    assert first.returncode == 3
    lines = first.stdout.splitlines()
    assert lines[0] == "no verdict: 1 suspected"
    assert f"  {StillSuspected(1, 2).render()}" in lines
    suspected = [line for line in lines if line.startswith("  suspected ")]
    assert any(all(value in line for value in ("allreduce 64 MiB nccl", "+10.0 %", "+2.0 %")) for line in suspected)
    assert "sizes = [67108864]" in (good / "confirm.toml").read_text()
    last = gate(good, "--out", "verdict.json", "--confirm-suite", "confirm.toml", *three(good))
    assert (last.returncode, last.stdout.splitlines()[0]) == (1, "regression: 1 confirmed")
    assert not (good / "confirm.toml").exists()
    verdict = json.loads((good / "verdict.json").read_text())
    assert (verdict["schema"], verdict["result"], verdict["exit_code"]) == (1, "regression", 1)
    assert verdict["suspicions"][0]["cell"]["size_bytes"] == 64 << 20
    assert verdict["outcomes"] == {"slower": 1, "inconclusive": 0, "no change": 1, "faster": 0}


def test_a_stored_verdict_fits_the_schema_and_is_printed_again(good: Path, tmp_path: Path) -> None:
    kept = tmp_path / "verdict.json"
    actual = gate(good, "--out", str(kept), *three(good))
    again = run_here(good, "gate", "--verdict", str(kept))
    *_, command = actual.stdout.removeprefix(again.stdout).splitlines()
    assert (again.returncode, command) == (1, "  collbench gate --baseline base slow-1 slow-2 slow-3 --html gate.html")
    assert read_verdict(kept).candidates == ("slow-1", "slow-2", "slow-3")


def test_json_is_the_verdict(good: Path) -> None:
    done = gate(good, "--format", "json", night(good, "same"))
    assert json.loads(done.stdout)["candidates"] == ["same"]


def test_every_file_has_the_same_verdict(good: Path, tmp_path: Path) -> None:
    names = ("out", "junit", "markdown", "openmetrics", "html")
    words = [word for name in names for word in (f"--{name}", str(tmp_path / name))]
    assert gate(good, *words, night(good, "slow-1", 1.1)).returncode == 3
    begins = {"out": '"result": "no verdict"', "junit": 'message="no verdict: 1 suspected"', "markdown": "gate: no verdict: 1 suspected",
              "openmetrics": 'collbench_gate_result{result="no_verdict"} 1.0', "html": '<p class="badge doubt">NO VERDICT</p>'}  # fmt: skip
    assert {name: words in (tmp_path / name).read_text() for name, words in begins.items()} == dict.fromkeys(names, True)


def test_a_report_has_a_stored_verdict(good: Path, tmp_path: Path) -> None:
    runs, kept, page = three(good), str(tmp_path / "verdict.json"), tmp_path / "page.html"
    gate(good, "--out", kept, *runs)
    assert run_here(good, "report", runs[0], "--html", str(page), "--verdict", kept).returncode == 0
    assert '<p class="badge bad">REGRESSION</p>' in page.read_text()
    assert one_sentence(run_here(good, "report", runs[0], "--verdict", kept)).startswith("--verdict ")


@pytest.mark.parametrize(("style", "codes"), [("collbench", (0, 3, 1, 4)), ("nagios", (0, 1, 2, 2)), ("prolog", (0, 0, 1, 1))])
def test_exit_codes_follow_the_style(style: str, codes: tuple[int, ...], good: Path) -> None:
    passed, suspected, confirmed = [night(good, "same")], [night(good, "slow-1", 1.1)], three(good)
    wrong = [night(good, "wrong", wrong=7)]
    done = [gate(good, "--exit-style", style, *runs) for runs in (passed, suspected, confirmed, wrong)]
    assert tuple(each.returncode for each in done) == codes
    if style == "nagios":
        assert [each.stdout.split(" - ")[0] for each in done] == [
            "COLLBENCH OK", "COLLBENCH WARNING", "COLLBENCH CRITICAL", "COLLBENCH CRITICAL",
        ]  # fmt: skip
        assert {each.stdout.count("\n") for each in done} == {1}
    if style == "prolog":
        assert ["--exit-style prolog" in each.stderr for each in done] == [False, True, False, False]
        assert [each.stderr.count("\n") for each in done] == [0, 1, 0, 0]


@pytest.mark.parametrize("words", [["--baseline", "nowhere", "good-0"], ["--no-such-option"], []])
def test_an_error_is_reported_in_the_requested_style(words: list[str], good: Path) -> None:
    own, nagios, prolog = (run_here(good, "gate", *words, "--exit-style", style) for style in ("collbench", "nagios", "prolog"))
    why = one_sentence(own)
    assert (nagios.returncode, nagios.stdout.startswith(f"COLLBENCH UNKNOWN - {why}"[:300])) == (3, True)
    assert (prolog.returncode, prolog.stdout) == (0, "")
    assert prolog.stderr.startswith(own.stderr) and "--exit-style prolog" in prolog.stderr


def test_a_defect_drains_no_node_and_is_unknown_to_a_monitor(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("surprise")

    monkeypatch.setattr("collbench.cli.judging.judge", broken)
    done = {style: gate(good, "--exit-style", style, night(good, "same")) for style in ("collbench", "nagios", "prolog")}
    assert {style: each.returncode for style, each in done.items()} == {"collbench": 4, "nagios": 3, "prolog": 0}
    assert done["nagios"].stdout == "COLLBENCH UNKNOWN - surprise\n"
    assert "Traceback" in done["prolog"].stderr and "surprise" in done["prolog"].stderr


@pytest.mark.contract
@pytest.mark.parametrize("closed", ["2>&-", *(pytest.param(each, marks=pytest.mark.long) for each in (">&-", "2>/dev/full"))])
def test_closed_streams_are_not_a_regression(closed: str, tmp_path: Path) -> None:
    """Python's own exit code for a stream that it cannot write is 1."""
    words = shlex.join([sys.executable, "-m", "collbench", "gate", "--exit-style"])
    lines = "; ".join(f"{words} {style} {closed}; echo $? >> codes" for style in ("collbench", "prolog"))
    run(tmp_path, lines, program=("bash", "-c"))
    assert (tmp_path / "codes").read_text().split() == ["2", "0"]


def test_the_style_may_be_a_variable_and_affects_no_other_command(good: Path) -> None:
    style = {"COLLBENCH_EXIT_STYLE": "prolog"}
    assert run_here(good, "gate", env=style).returncode == 0
    assert run_here(good, "report", "nowhere", env=style).returncode == 2
    assert run_here(good, "gate", "--exit-style", "collbench", env=style).returncode == 2


def test_impossible_requests_are_rejected(good: Path) -> None:
    assert "good-0 " in one_sentence(run_here(good, "gate", "--baseline", "base", "good-0"))
    done = run_here(good, "gate", "--baseline", "base", "--exit-style", "nagios", "--format", "json", "good-0")
    assert done.returncode == 3 and "--format json" in done.stdout


def test_a_gate_that_fails_removes_an_earlier_verdict(good: Path, tmp_path: Path) -> None:
    outputs = ["--out", str(tmp_path / "verdict.json"), "--junit", str(tmp_path / "gate.xml")]
    assert gate(good, *outputs, night(good, "same")).returncode == 0
    assert gate(good, *outputs, "--paired", night(good, "same")).returncode == 2
    assert len(list(tmp_path.iterdir())) == 2  # an invalid command line judges nothing
    assert gate(good, *outputs, "not-there").returncode == 2
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "gate.xml").write_text("<mine/>")
    assert "gate.xml" in one_sentence(gate(good, *outputs, night(good, "same")))


# collbench baseline add, show, drop: as a user types them.


def nights(folder: Path, count: int) -> list[str]:
    """Store the runs of so many allocations; the small case scatters by 1 %, the large one does not."""
    return [str(launch(folder / f"night-{n}", {8: 1e-6 * (1 + 0.01 * (n % 2)), 64 << 20: 0.1})) for n in range(count)]


def test_add_show_and_drop(tmp_path: Path) -> None:
    done = run_here(tmp_path, "baseline", "add", "base", *nights(tmp_path, 6))
    assert done.returncode == 0
    assert done.stdout.splitlines() == [f"base/night-{n}.allocation.jsonl" for n in range(6)]
    shown = run_here(tmp_path, "baseline", "show", "base").stdout.splitlines()
    assert shown[0] == "base: 6 allocations, 2 cases"
    assert "1 launch  node1, node2" in shown[1]
    assert [line.split() for line in shown[-2:]] == [
        ["allreduce", "8", "B", "nccl", "6", "1.005", "5.0", "%"],
        ["allreduce", "64", "MiB", "nccl", "6", "100000", "2.0", "%"],
    ]
    small, large = map(json.loads, run_here(tmp_path, "baseline", "show", "base", "--format", "json").stdout.splitlines())
    assert (small["operation"], small["size_bytes"], small["allocations"]) == ("allreduce", 8, 6)
    assert (round(large["time_s"], 9), round(large["visible_slowdown"], 6)) == (0.1, 0.02)
    assert run_here(tmp_path, "baseline", "drop", "base", "night-3").returncode == 0
    assert run_here(tmp_path, "baseline", "show", "base").stdout.startswith("base: 5 allocations, 2 cases")


def test_add_and_show_print_how_many_allocations_a_verdict_needs(tmp_path: Path) -> None:
    done = run_here(tmp_path, "baseline", "add", "base", *nights(tmp_path, 3))
    assert "needs 4" in done.stderr and done.stderr.endswith(" collbench baseline add base RUN…\n")
    assert "add 1 more: collbench baseline add base RUN…" in run_here(tmp_path, "baseline", "show", "base").stdout
    run_here(tmp_path, "baseline", "add", "base", str(launch(tmp_path / "fourth", {8: 1e-6})))
    assert "thin baseline: " in run_here(tmp_path, "baseline", "show", "base").stdout


def test_show_lists_launches_in_another_machine_state(tmp_path: Path) -> None:
    odd = str(launch(tmp_path / "odd", {8: 4e-6, 64 << 20: 0.1}, canary_s={"before": 26e-8, "after": 26e-8}))
    run_here(tmp_path, "baseline", "add", "base", *nights(tmp_path, 5), odd)
    shown = run_here(tmp_path, "baseline", "show", "base").stdout.splitlines()
    assert LaunchesLeftOut("odd", 1, 1, "baseline").render() in shown
    assert any(line.startswith("thin baseline: ") for line in shown)
    assert shown[-2].split()[-4:] == ["5", "1.000", "5.0", "%"]


def test_bad_input_is_one_sentence(tmp_path: Path) -> None:
    runs = nights(tmp_path, 2)
    run_here(tmp_path, "baseline", "add", "base", *runs)
    assert "night-0" in one_sentence(run_here(tmp_path, "baseline", "add", "base", *runs))
    slowed = str(launch(tmp_path / "slow", {8: 1e-6}, flags=("slowed",)))
    assert "allocation slow " in one_sentence(run_here(tmp_path, "baseline", "add", "base", slowed))
    assert "choose from night-0" in one_sentence(run_here(tmp_path, "baseline", "drop", "base", "night-9"))
    alone = one_sentence(run_here(tmp_path, "baseline", "diff", "base", "night-0"))
    assert "collbench baseline diff base night-0 night-1" in alone


# collbench history, and collbench baseline diff: as a user types them.


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A baseline of twelve allocations, upgraded in the middle."""
    add_all(tmp_path / "base", upgraded(12, 6, by=1.1))
    return tmp_path


def test_the_history_of_a_baseline(base: Path) -> None:
    done = run_here(base, "history", "base", "--only", "*MiB mpi")
    assert done.returncode == 0 and done.stderr == ""
    first, *rest = done.stdout.splitlines()
    assert first.startswith("base: 12 allocations ") and "2026-11-01" in first and "2026-11-12" in first
    assert sum("night-7, 2026-11-07" in line and "4.3 → 5.0" in line for line in rest) == 5
    assert done.stdout.isascii() is False and "\x1b" not in done.stdout and "█" not in done.stdout


def test_bars_with_colour_and_a_page(base: Path) -> None:
    done = run_here(base, "history", "base", "--only", "allreduce 64 MiB mpi", "--color", "always", "--html", "page.html")
    assert "█" in done.stdout and "\x1b[33m" in done.stdout
    assert (base / "page.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_diff_of_allocations_and_of_baselines(base: Path) -> None:
    done = run_here(base, "baseline", "diff", "base", "night-6", "night-7")
    assert done.returncode == 0 and "4 slower, 0 faster, 10 no change" in done.stdout
    add_all(base / "other", upgraded_nights(6))
    actual = json.loads(run_here(base, "baseline", "diff", "base", "other", "--format", "json").stdout)
    assert (actual["old"], actual["new"], len(actual["moved"])) == ("base", "other", 19)


def test_bad_input_of_the_history_is_one_sentence(base: Path) -> None:
    assert "'no such case'" in one_sentence(run_here(base, "history", "base", "--only", "no such case"))
    assert "--color 'blue'" in one_sentence(run_here(base, "history", "base", "--color", "blue"))
    assert "choose from night-1" in one_sentence(run_here(base, "baseline", "diff", "base", "night-1", "night-99"))
    assert one_sentence(run_here(base, "baseline", "diff", "base", "nowhere")).startswith("nowhere ")
