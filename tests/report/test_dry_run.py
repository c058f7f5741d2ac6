"""What --dry-run prints: cases by sweep and backend, each case as JSON and CSV, and an estimate with its basis."""

import csv
import io
import json
from typing import Any

import pytest

from collbench.errors import UsageError
from collbench.operations.case import Split
from collbench.operations.traffic import EVEN
from collbench.report.dry_run import Planned
from tests.helpers import make_case

CASES = [
    ("sweeps[1] 'a'", make_case(count=2)),
    ("sweeps[1] 'a'", make_case(count=256, split=Split("MOD", 2))),
    ("sweeps[2]", make_case("uint8", 1, operation="barrier", size_bytes=0, redop=None, traffic=EVEN)),
]


def printed(format: str = "table", quiet: bool = False, **changes: Any) -> tuple[str, str]:
    out, talk = io.StringIO(), io.StringIO()
    planned = Planned(**{"title": "suite a", "ranks": 2, "cases": CASES, "max_time_s": 0.5, **changes})
    planned.write(format, out, None if quiet else talk)
    return out.getvalue(), talk.getvalue()


def test_an_earlier_run_shows_how_long_a_case_takes() -> None:
    out, _ = printed(done=5, known_s=1.25, known_from="runs/x", launches=2, ranks=1, notes=["without gloo: no torch"])
    assert out.splitlines()[4:] == [
        "suite a: 3 cases on 1 rank; runs/x has 5 more",
        "about 8 s, if a case takes 1.25 s as in runs/x, including start-up",
        "at most 3 s of samples: 3 cases × 2 launches × 0.5 s of --max-time; cases that a backend cannot measure take no time",
        "without gloo: no torch",
    ]


def test_a_complete_run_leaves_nothing_and_a_total_time_is_the_limit_of_a_launch() -> None:
    assert Planned("a", 2, CASES, 5.0, launches=2, total_s=10.0).at_most_s == 20.0
    assert Planned("a", 2, CASES, 0.5, total_s=10.0).at_most_s == 1.5
    assert printed(cases=[], done=5, known_s=1.0, known_from="runs/x") == ("suite a: 0 cases on 2 ranks; runs/x has 5 more\n", "")


def test_json_has_a_case_per_line_and_the_time_beside_it() -> None:
    out, talk = printed("json")
    first, second, third = (json.loads(line) for line in out.splitlines())
    assert (first["sweep"], first["operation"], first["backend"], first["dtype"], first["size_bytes"]) == (
        "sweeps[1] 'a'", "allreduce", "simulated", "float32", 8,
    )  # fmt: skip
    assert (first["split"], second["split"], third["traffic"], third["redop"]) == (None, "MOD 2", "even", None)
    assert talk.startswith("suite a: 3 cases on 2 ranks\nat most 2 s")
    assert printed("json", quiet=True) == (out, "")


def test_csv_has_the_same_fields_and_nccl_tests_no_form_of_a_plan() -> None:
    rows = list(csv.DictReader(io.StringIO(printed("csv")[0], newline="")))
    assert [(row["sweep"], row["size_bytes"], row["split"]) for row in rows] == [
        ("sweeps[1] 'a'", "8", ""), ("sweeps[1] 'a'", "1024", "MOD 2"), ("sweeps[2]", "0", ""),
    ]  # fmt: skip
    with pytest.raises(UsageError, match="use table, csv or json"):
        printed("nccl-tests")


def test_untrusted_text_is_plain() -> None:
    evil = "=1+\x1b[2J\u202e"
    cases = [(evil, make_case(count=2))]
    assert "\x1b" not in printed(title=evil, cases=cases, notes=[evil])[0] and "=1+?[2J?" in printed(title=evil, cases=cases)[0]
    out, talk = printed("csv", title=evil, cases=cases)
    assert next(iter(list(csv.reader(io.StringIO(out)))[1])) == "'=1+?[2J?"
    assert talk.startswith("=1+?[2J?: 1 case")
    assert json.loads(printed("json", cases=cases)[0])["sweep"] == evil
