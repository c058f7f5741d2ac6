"""What `collbench baseline` and `collbench history` print: hosts, the next command, what moved, courses and changes."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from collbench.errors import UsageError
from collbench.gating.baseline import Baseline
from collbench.gating.history import CASE, CaseHistory, SeriesSubject, between_allocations, between_baselines, history
from collbench.report import baseline as report
from tests.gate.histories import case, nights, upgraded
from tests.gate.judging import allocation


def on(*names: str) -> dict[str, dict[str, str]]:
    return {"hosts": {"names": ", ".join(names)}}


def test_few_hosts_are_shown_by_name_and_many_by_number_on_short_lines() -> None:
    assert report.hosts_of(allocation("a", facts=on("node1", "node2"))) == "node1, node2"
    assert report.hosts_of(allocation("a", facts=on(*(f"node{n:03}" for n in range(512))))) == "512 hosts, node000 to node511"
    assert report.hosts_of(allocation("a", facts={})) == "hosts unknown"
    wide = [allocation(f"good-{n}", facts=on(*(f"node{n:03}.cluster.example.org" for n in range(512)))) for n in range(4)]
    assert max(len(line.text) for line in report.baseline_lines(Baseline(Path("base"), wide), "table")) < 140


def test_after_adding_the_next_command_is_reported() -> None:
    assert report.after_adding(Path("my base"), 1) == (
        "my base has 1 allocation; a verdict needs 4, better 6: collbench baseline add 'my base' RUN…"
    )
    assert report.after_adding(Path("base"), 4) == "base has 4 allocations (better 6); detectable slowdowns: collbench baseline show base"
    assert report.after_adding(Path("base"), 6) == "base has 6 allocations; detectable slowdowns: collbench baseline show base"


BASE = Baseline(Path("base"), upgraded(12, 6, by=1.1))


def test_what_moved_either_way_and_what_else_changed() -> None:
    actual = [line.text for line in report.diff_lines(between_allocations(BASE, "night-6", "night-7"), "table")]
    assert actual[:3] == [
        "night-6: 2026-11-06 on node1, node2", "night-7: 2026-11-07 on node1, node2",
        "14 cases: 4 slower, 0 faster, 10 no change (limit inside ±5 %), 0 inconclusive",
    ]  # fmt: skip
    moved = [re.fullmatch(r"  slower: (.*): \+\d+\.\d % time; noise limit \+\d\.\d %", line) for line in actual[3:8]]
    assert {each[1] for each in moved if each} == {
        "allreduce on mpi, large messages",
        *(f"allreduce {size} MiB mpi" for size in (2, 16, 64, 256)),
    }
    assert actual[8:] == [
        "a comparison, not a gate: about one in 500 unchanged cases is beyond its limit by chance",
        "what changed besides:", "  software mpi version: 4.3 → 5.0",
    ]  # fmt: skip
    actual = [line.text for line in report.diff_lines(between_allocations(BASE, "night-7", "night-6"), "table")]
    assert re.fullmatch(r"  faster: .*: -\d+\.\d % time; noise limit -\d\.\d %", actual[3])


def test_nothing_known_and_cases_of_one_side() -> None:
    first, second = nights(2)
    del second.cases[case(8)]
    moves = between_baselines(Baseline(Path("a"), [first]), Baseline(Path("b"), [second]))
    actual = [line.text for line in report.diff_lines(moves, "table")]
    assert actual[2:] == [
        "13 cases: 0 slower, 0 faster, 0 no change (limit inside ±5 %), 13 inconclusive",
        "of 13 cases the noise is unknown: too few allocations measured them",
        "only in a: allreduce 8 B mpi", "no other recorded change",
    ]  # fmt: skip


def test_json_is_one_object() -> None:
    old, new = Baseline(Path("a"), BASE.allocations[:6]), Baseline(Path("b"), BASE.allocations[6:])
    (line,) = report.diff_lines(between_baselines(old, new), "json")
    actual = json.loads(line.text)
    assert (actual["old"], actual["new"], actual["allocations"][0][-1]) == ("a", "b", "night-6")
    slow = next(each for each in actual["moved"] if each["name"] == "allreduce 64 MiB mpi")
    assert actual["summary"] == {"slower": 4, "inconclusive": 0, "no_change": 10, "faster": 0} and slow["outcome"] == "slower"
    assert slow["beyond"] and round(slow["factor"], 1) == 1.1 and slow["cell"]["size_bytes"] == 64 << 20
    assert actual["changes"] == [{"kind": "software", "what": "mpi version", "a": "4.3", "b": "5.0"}]


FOUND = history("base", upgraded())


def test_a_line_for_each_series_groups_first_and_its_changes_below_it() -> None:
    shown = [line.text for line in report.history_lines(FOUND, "table", "*")]
    assert shown[0] == "base: 20 allocations from 2026-11-01 to 2026-11-20, 14 cases; changed: 1 group, 4 cases"
    assert shown[3].startswith("all cases  ")
    group = next(number for number, line in enumerate(shown) if line.startswith("allreduce on mpi, large messages"))
    assert re.fullmatch(r"allreduce on mpi, large messages +20 of 20 +– +× 1\.0[45]\d +[0-2]{10}[7-9]{10}", shown[group])
    assert re.fullmatch(
        r"    slower × 1\.0[45]\d \(1\.04\d to 1\.05\d; limit × 1\.01\d\) since night-11, 2026-11-11; "
        r"with it: software mpi version: 4\.3 → 5\.0", shown[group + 1],
    )  # fmt: skip
    assert group == 4, "changed groups come first"
    cases = [line.split("  ")[0] for line in shown[group + 2 :] if line.startswith("allreduce ") and " on " not in line]
    assert set(cases[:4]) == {f"allreduce {size} MiB mpi" for size in (2, 16, 64, 256)}
    assert len(cases) == 14


def test_notes_gaps_and_a_change_without_a_recorded_cause_are_reported() -> None:
    found = history("base", nights(12, lambda number, backend, size: 0.9 if number >= 6 else 1.0))
    actual = [line.text for line in report.history_lines(found, "table")]
    assert any(re.search(r"faster × 0\.90\d .* since night-7, 2026-11-07; with it: no recorded change$", line) for line in actual)
    found = history("base", nights(8, lambda number, backend, size: None if size == 8 and number < 4 else 1.0), ["left out: x\x1b[2J"])
    actual = [line.text for line in report.history_lines(found, "table")]
    assert actual[1] == "left out: x?[2J"
    assert any(re.match(r"allreduce 8 B mpi +4 of 8 .* \.{4}\d{4}$", line) for line in actual)
    assert "    measured since night-5" in actual


def test_only_some_cases_and_their_groups() -> None:
    names = [each.about.name for each in report.chosen(FOUND, "*64 MiB*")]
    assert names == [
        "allreduce on gloo, large messages", "allreduce on mpi, large messages", "allreduce 64 MiB gloo", "allreduce 64 MiB mpi",
    ]  # fmt: skip
    with pytest.raises(UsageError, match=r"--only 'alltoall' .* allreduce 8 B gloo, "):
        report.chosen(FOUND, "alltoall")


def test_a_course_has_a_sign_for_each_allocation_and_noise_stays_flat() -> None:
    def of(*values: float) -> CaseHistory:
        return CaseHistory(SeriesSubject(CASE, "x"), np.array(values), (), 0.02)

    assert report.course(of(0.0, 0.1, float("nan"), 0.05), report.BARS) in ("▁█·▅", "▁█·▄")
    assert report.course(of(0.0, 0.1, float("nan")), report.FIGURES) == "09."
    assert set(report.course(of(0.0, 0.002, 0.001), report.FIGURES)) <= {"4", "5"}
    assert len(report.course(of(*[0.0] * 99), report.FIGURES)) == 60
    assert report.course(of(float("nan")), report.FIGURES) == "."


@pytest.mark.parametrize(("encoding", "painted", "letters"), [
    ("utf-8", True, report.BARS), ("utf-8", False, report.FIGURES), ("ascii", True, report.FIGURES), ("nonsense", True, report.FIGURES),
    (None, True, report.FIGURES),
])  # fmt: skip
def test_bars_are_for_terminals_that_can_show_them(encoding: str | None, painted: bool, letters: str) -> None:
    assert report.letters_for(encoding, painted) == letters


def test_of_many_cases_the_first_are_shown_and_those_of_one_allocation_are_counted() -> None:
    many = history("base", nights(2, sizes=range(8, 8 + 100)))
    actual = [line.text for line in report.history_lines(many, "table")]
    assert actual[-1] == "and 140 more cases: ask for some with --only PATTERN, or for all with --format json"
    lines = [line.text for line in report.history_lines(history("base", nights(1, sizes=(8, 16))), "table")]
    assert lines[1:] == ["not shown, since measured in one allocation only: 4 cases (--format json has them)"]


def test_json_has_an_object_for_each_series() -> None:
    actual = [json.loads(line.text) for line in report.history_lines(FOUND, "json")]
    assert [each["kind"] for each in actual] == ["whole"] + ["group"] * 4 + ["cell"] * 14
    one = next(each for each in actual if each["name"] == "allreduce 64 MiB mpi")
    assert one["cell"]["size_bytes"] == case(64 << 20).size_bytes
    assert (len(one["time_s"]), len(one["allocations"]), one["missing"]) == (20, 20, "")
    (step,) = one["steps"]
    assert (step["since"], step["last_before"], step["changes"]) == ("night-11", "night-10", ["software mpi version: 4.3 → 5.0"])
    assert step["low"] < step["factor"] < step["high"] and step["factor"] == pytest.approx(1.05, abs=0.01)
    assert "factor" in actual[0] and "time_s" not in actual[0]
