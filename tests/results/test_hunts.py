"""Rounds of a hunt: written, and read back for all contents of the files."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.errors import UsageError
from collbench.results.folder import HUNT, RunFolder
from collbench.results.reader import read_run
from collbench.results.rounds import HuntRound, StoredHunt, check_hunt, holds_hunt, read_hunt, round_from_json

ABOUT: dict[str, Any] = {"places": ["a", "b", "c", "d"], "verdict": None}
SUSPECT: dict[str, Any] = {
    "kind": "node", "places": [1], "state": "confirmed", "ratio": 0.5, "low": 0.49, "high": None, "partners": [0, 2],
    "evidence": ["slow with a and c"], "part": "",
}  # fmt: skip
VERDICT: dict[str, Any] = {
    "result": "confirmed",
    "suspects": [SUSPECT],
    "rounds": {"sweep": 3},
    "notes": [],
    "no_verdict": None,
    "middle": 1e9,
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 9) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)


def a_round(number: int = 0, groups: tuple[tuple[int, ...], ...] = ((0, 1), (2, 3)), **changes: Any) -> HuntRound:
    each, n = (1e9,) * len(groups), len(groups)
    return replace(
        HuntRound(number, "pairs", "sweep", "round 1 of 3", groups, each, each, (1e-6,) * n, each, each, (0,) * n, (None,) * n), **changes
    )


Store = Callable[..., StoredHunt]


@pytest.fixture
def stored(tmp_path: Path) -> Store:
    """Writes rounds, and raw bytes behind them; returns how they read."""

    def these(*rounds: HuntRound, tail: bytes = b"", about: Any = ABOUT) -> StoredHunt:
        folder = RunFolder.create(tmp_path / "run", "hunt", {"hunt": about})
        for one in rounds:
            folder.append_round(one.as_json(), HUNT)
        folder.finish()
        with (tmp_path / "run" / HUNT).open("ab") as file:
            file.write(tail)
        return read_hunt(read_run(tmp_path / "run"))

    return these


def test_what_was_written_is_read(stored: Store, tmp_path: Path) -> None:
    rounds = [
        a_round(0),
        a_round(1, ((0, 2, 3),), kind="groups", stage="growing", backward_bytes_per_s=(None,), latency_s=(None,), flags=("simulated",)),
        a_round(2, ((1, 3),), kind="nic", nic="eth1", na=("not there",), speed_bytes_per_s=(None,), wrong_detail=(None,)),
    ]
    found = stored(*rounds, about={**ABOUT, "verdict": VERDICT})
    assert (found.rounds, found.warnings, found.about["verdict"]) == (rounds, [], VERDICT)
    assert holds_hunt(read_run(tmp_path / "run")) and json.loads((tmp_path / "run" / "run.json").read_text())["rows"] == 3


def test_a_folder_with_a_hunt_is_not_written_into_again(stored: Store, tmp_path: Path) -> None:
    stored(a_round())
    (tmp_path / "run" / "run.json").unlink()
    with pytest.raises(UsageError, match="already holds a run"):
        RunFolder.create(tmp_path / "run", "hunt", {})


def test_a_hunt_that_was_stopped_ends_with_its_last_whole_round(stored: Store) -> None:
    found = stored(a_round(0), tail=b'{"round":1,"kind":"pa')
    assert found.rounds == [a_round(0)]
    assert len(found.warnings) == 1 and f"{HUNT} ends in the middle of line 2: " in found.warnings[0]


MISFITS = [
    ("groups", [[0, 1], [1, 2]]), ("groups", [[0, 4]]), ("groups", [[]]), ("groups", 3), ("kind", "triples"), ("kind", None),
    ("speed_bytes_per_s", [1e9]), ("speed_bytes_per_s", [0, 1e9]), ("low_bytes_per_s", [-1, 1]), ("wrong", [0, -1]), ("wrong", [0, True]),
    ("na", [None, 7]), ("round", -1), ("flags", [1]), ("why", None), ("nic", 5), ("latency_s", ["1", 1]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), MISFITS)
def test_a_line_that_does_not_fit_is_left_out_and_named(name: str, value: Any, stored: Store) -> None:
    bad = {**a_round(1).as_json(), name: value}
    found = stored(a_round(0), tail=json.dumps(bad).encode() + b"\n" + json.dumps(a_round(2).as_json()).encode() + b"\n")
    assert found.rounds == [a_round(0), a_round(2)]
    assert len(found.warnings) == 1 and f"line 2: '{name}' is " in found.warnings[0]


@given(name=st.sampled_from(sorted(a_round().as_json())), value=JSON)
@settings(max_examples=200, deadline=None)
def test_no_value_of_a_line_ends_in_anything_but_a_round_or_a_value_error(name: str, value: Any) -> None:
    try:
        found = round_from_json({**a_round().as_json(), name: value}, 4)
    except ValueError:
        return
    assert round_from_json(json.loads(json.dumps(found.as_json())), 4) == found


@pytest.mark.parametrize("about", [None, {}, {"places": []}, {"places": ["a", 3]}, {"places": "ab"}, {"places": ["a"], "crossed": [1]}])
def test_a_run_json_that_names_no_places_is_refused(about: Any, stored: Store) -> None:
    with pytest.raises(UsageError, match=r"it was altered$"):
        stored(a_round(), about=about)


@given(where=st.sampled_from(["verdict", "suspect"]), name=st.text(max_size=3) | st.sampled_from([*VERDICT, *SUSPECT]), value=JSON)
@settings(max_examples=200, deadline=None)
def test_a_verdict_that_was_altered_is_refused_or_whole(where: str, name: str, value: Any) -> None:
    from collbench.report.hunt import as_object, write_hunt
    from collbench.results.reader import Run

    verdict = {**VERDICT, name: value} if where == "verdict" else {**VERDICT, "suspects": [{**SUSPECT, name: value}]}
    about = {**ABOUT, "verdict": verdict}
    try:
        check_hunt(Run(Path("run"), {"hunt": about}))
    except UsageError:
        return
    assert as_object(about)["result"] in ("confirmed", "nobody", "no verdict")
    for format in ("table", "csv", "json"):
        write_hunt(about, format, io.StringIO(), color=False)
