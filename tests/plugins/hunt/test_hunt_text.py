"""The result of a hunt as text, CSV and JSON, as measured and as stored."""

import csv
import io
import json
from math import nan
from pathlib import Path

import pytest

from collbench.errors import UsageError
from collbench.plugins.hunt import HUNT_FILE
from collbench.plugins.hunt.api import HUNTS_TABLE
from collbench.plugins.hunt.protocol import Suspect
from collbench.plugins.hunt.recommendation import FILE
from collbench.plugins.hunt.records import StoredHunt
from collbench.plugins.hunt.text import SUSPECTS
from collbench.reason import CommandText
from collbench.report.forms import write
from collbench.report.runs import report_run
from collbench.results.folder import RunFolder
from collbench.results.reader import read_run
from tests.plugins.hunt.test_records import SUSPECT, a_round

SLOW = {**SUSPECT, "high": 0.52}
CLEARED = {**SUSPECT, "places": [0], "state": "cleared", "ratio": 1.0, "low": None, "evidence": ["as fast as c with d"]}
UNDECIDED = {**SUSPECT, "kind": "path", "places": [2, 3], "state": "inconclusive", "ratio": 0.8, "low": None, "partners": []}
CEILING = {"bytes_per_s": 12.5e9, "limited_by": "NIC eth0 100 Gb/s", "source": "ethtool", "kind": "network"}


def about(*suspects, result="confirmed", **changes):
    verdict = {"result": result, "suspects": list(suspects), "rounds": {"sweep": 3, "cross-check": 2}, "notes": ["a link was not crossed"],
               "no_verdict": None, "middle": 12e9, **changes.pop("verdict", {})}  # fmt: skip
    return {
        "places": ["a", "b", "c", "d"], "by": "node", "backend": "mpi", "size_bytes": 1 << 20, "rounds": 5, "promised": 9,
        "max_time_s": 0.5, "ceiling": CEILING, "verdict": verdict, **changes,
    }  # fmt: skip


def text_of(hunt, format="table", advice=(), run=""):
    out = io.StringIO()
    rounds = [a_round(number) for number in range(hunt["rounds"])]
    write(SUSPECTS, StoredHunt(hunt, rounds, advice=advice), format, out, color=False, run=run)
    return out.getvalue()


def test_text_of_a_hunt():
    assert text_of(about(SLOW, CLEARED, UNDECIDED), advice=("to take b out of use:",)).splitlines() == [
        "hunt among 4 nodes over mpi, messages of 1 MiB, 5 rounds (estimate: at most 9)",
        "1 confirmed, 1 cleared, 1 inconclusive",
        "confirmed: b sends and receives at 50 % of the others (49 % to 52 %)",
        "  slow with a and c",
        "inconclusive: the path between c and d reaches 80 % of what their other pairs do",
        "  slow with a and c",
        "cleared: a is as fast as the others",
        "  as fast as c with d",
        "median 12.0 of 12.5 GB/s (96 %), limited by NIC eth0 100 Gb/s",
        "a link was not crossed",
        "for a verdict on inconclusive suspects, measure longer on an idle system: `collbench hunt --max-time 2`",
        "to take b out of use:",
    ]


def test_commands_are_not_wrapped(monkeypatch):
    monkeypatch.setattr("collbench.report.screen.width_of", lambda out: 40)
    command = CommandText(f"  scontrol update NodeName=b State=DRAIN Reason={'slow ' * 20}.")
    text = text_of(about(SLOW), advice=("to take b out of use:", command)).splitlines()
    assert command in text and max(len(line) for line in text if line != command) <= 40


def none_slow(*suspects, **verdict):
    return about(*suspects, result="nobody", verdict=verdict)


@pytest.mark.parametrize(("hunt", "line"), [
    (none_slow(), "no slow endpoint or path found\n"), (none_slow(CLEARED), "no slow endpoint or path found: 1 cleared\n"),
    (about(result="no verdict", verdict={"no_verdict": "only two places"}), "no verdict: only two places\n"),
    (about(UNDECIDED, result="no verdict"), "no verdict: 1 inconclusive\n"),
    (none_slow(middle=3e9), "median 3.00 of 12.5 GB/s (24 %), limited by NIC eth0 100 Gb/s\n"),
    (none_slow(middle=3e9), "equally slow, at 24 % of the expected bandwidth (NIC eth0 100 Gb/s)"),
    (about(result="nobody", ceiling=None), "median 12.0 GB/s; the expected bandwidth is unknown\n"),
    (none_slow(middle=15e9), "median 15.0 GB/s, above the 12.5 GB/s of NIC eth0 100 Gb/s"),
    (about({**SLOW, "part": "the interface eth1"}), "at 50 % of the others (49 % to 52 %): the interface eth1"),
    (about(*[SLOW] * 30, *[CLEARED] * 30), "and 10 more cleared: see --format json"),
])  # fmt: skip
def test_a_line_of_the_text(hunt, line):
    assert line in text_of(hunt)


def test_all_confirmed_suspects_are_shown():
    assert "equally slow" not in text_of(none_slow(middle=9e9)) + text_of(about(SLOW, verdict={"middle": 3e9}))
    text = text_of(about(*[SLOW] * 30, *[CLEARED] * 30))
    assert text.count("confirmed: b") == 30 and text.count("cleared: a") == 20


def test_csv_has_a_record_for_each_suspect():
    first, second = csv.DictReader(io.StringIO(text_of(about(SLOW, UNDECIDED), "csv", run="=run")))
    assert first == {
        "run": "'=run",
        "state": "confirmed", "code": "CB6101", "kind": "node", "places": "b", "ratio": "0.5", "ratio_low": "0.49", "ratio_high": "0.52",
        "partners": "a c", "part": "", "evidence": "slow with a and c",
    }  # fmt: skip
    assert (second["code"], second["places"], second["ratio_low"]) == ("CB6105", "c d", "")
    hostile = about(SLOW, places=["=1+1", "=cmd()", "\x1b[31m", "d"])
    (record,) = csv.DictReader(io.StringIO(text_of(hostile, "csv")))
    assert record["places"].startswith("'=") and "\x1b" not in text_of(hostile)


def test_json_is_one_object_with_texts_and_codes():
    actual = json.loads(text_of(about(SLOW), "json", advice=("do this",)))
    assert (actual["schema"], actual["result"], actual["places"], actual["advice"]) == (1, "confirmed", ["a", "b", "c", "d"], ["do this"])
    assert actual["share_of_ceiling"] == pytest.approx(0.96)
    (one,) = actual["suspects"]
    assert (one["code"], one["places"], one["sentence"]) == (
        "CB6101", [1], "confirmed: b sends and receives at 50 % of the others (49 % to 52 %)",
    )  # fmt: skip
    with pytest.raises(UsageError, match=r"--format 'nccl-tests' .*table, csv, jsonl?$"):
        text_of(about(SLOW), "nccl-tests")


def hunted(path, hunt, exit_code, rounds=5):
    """Write the run of a hunt."""
    run = RunFolder.create(path, "hunt", {"hunt": hunt})
    for number in range(rounds):
        run.append_record(a_round(number).as_json(), HUNT_FILE)
    run.finish(exit_code=exit_code)
    return path


@pytest.fixture
def run(tmp_path):
    return hunted(tmp_path / "run", about(SLOW), 1)


def reported(*paths, **options):
    out, err = io.StringIO(), io.StringIO()
    code = report_run(paths, options.pop("csv", None), options.pop("format", "table"), out, err=err, **options)
    return code, out.getvalue(), err.getvalue()


def test_a_stored_hunt_equals_the_measured_one(run, tmp_path):
    code, out, err = reported(run)
    assert (code, err) == (0, "")
    assert out == f"run (5 rounds)\n{text_of(about(SLOW))}"
    assert json.loads(reported(run, format="json")[1]) == json.loads(text_of(about(SLOW), "json"))
    assert reported(run, csv=Path("-"))[1] == text_of(about(SLOW), "csv", run="run")
    assert reported(run, csv=tmp_path / "a.csv")[0] == 0
    assert (tmp_path / "a.csv").read_bytes().decode() == text_of(about(SLOW), "csv", run="run")
    err = reported(run, markdown=tmp_path / "page.md")[2]
    assert err.startswith(f"{run} has a hunt") and f"`collbench report {run}`" in err
    assert "has a hunt" in (tmp_path / "page.md").read_text()


def test_a_hunt_that_stopped_early_has_no_verdict(tmp_path):
    folder = RunFolder.create(tmp_path / "run", "hunt", {"hunt": {**about(), "verdict": None, "rounds": None}})
    folder.append_record(a_round().as_json(), HUNT_FILE)
    folder.end_early("abort", "rank 3 was killed", 4)
    out = reported(tmp_path / "run")[1]
    assert out.startswith("run (1 round, not finished)\n")  # though run.json could still be completed
    assert "hunt among 4 nodes over mpi, messages of 1 MiB, 1 round (estimate: at most 9)" in out
    assert "without a verdict" in out and "confirmed" not in out


def test_a_place_without_figures_is_not_slow(tmp_path):
    suspect = Suspect("node", (1,), "inconclusive", nan).as_json()
    silent = {**UNDECIDED, **suspect, "evidence": ["no figure of its last 3 of 5 pairs: gone"]}
    hunt = about(silent, result="no verdict")
    hunted(tmp_path / "run", hunt, 3)
    assert any(line.startswith("inconclusive: b ") for line in text_of(hunt).splitlines())
    code, out, err = reported(tmp_path / "run")
    assert (code, err, out) == (0, "", f"run (5 rounds)\n{text_of(hunt)}")
    for format in ("csv", "json"):
        assert reported(tmp_path / "run", format=format)[1] == text_of(hunt, format, run="run")
    (record,) = csv.DictReader(io.StringIO(text_of(hunt, "csv")))
    assert (record["state"], record["ratio"]) == ("inconclusive", "")


def test_an_unreadable_recommendation_is_reported_and_one_csv_of_pairs_and_hunts_refused(run, tmp_path):
    (run / FILE).write_text("{")
    code, out, err = reported(run)
    assert (code, out) == (0, f"run (5 rounds)\n{text_of(about(SLOW))}")
    assert err.startswith(f"{run / FILE}: cannot be read (not JSON ")
    RunFolder.create(tmp_path / "other", "pairs", {"pairs": {"places": ["a", "b"], "size_bytes": 1, "latency_size_bytes": 1}}).finish()
    text = f"^{tmp_path}/other has a matrix of pairs, but {run} has a hunt: write them to two CSV files$"
    with pytest.raises(UsageError, match=text):
        reported(run, tmp_path / "other", csv=tmp_path / "a.csv")


@pytest.mark.parametrize(("suspects", "result", "first"), [([SLOW], "confirmed", "confirmed"), ([], "nobody", None)])
def test_a_data_frame_has_the_result_of_each_hunt(suspects, result, first, tmp_path):
    RunFolder.create(tmp_path / "run", "hunt", {"hunt": about(*suspects, result=result)}).finish()
    (record,) = HUNTS_TABLE.records(read_run(tmp_path / "run"), True)
    assert dict(zip(HUNTS_TABLE.described(), record, strict=True)) == {
        "run": "run", "result": result, "state": first, "code": first and "CB6101", "kind": first and "node", "places": first and "b",
        "ratio": first and 0.5, "ratio_low": first and 0.49, "ratio_high": first and 0.52, "partners": first and "a c",
        "part": first and "", "evidence": first and "slow with a and c",
    }  # fmt: skip
