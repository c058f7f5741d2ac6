"""Rounds of a hunt and of pairs: written, read back for all contents of the files; and the matrix of pairs."""

import io
import json
from math import nan
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.errors import UsageError
from collbench.plugins.hunt import HUNT_FILE, PAIRS_FILE
from collbench.plugins.hunt.kind import HuntKind
from collbench.plugins.hunt.protocol import CONFIRMED, INCONCLUSIVE, Suspect, result_of_pairs
from collbench.plugins.hunt.records import (
    HuntRound,
    PairRound,
    StoredHunt,
    StoredSuspect,
    check_hunt,
    decoded_round,
    matrix_of,
    place_hosts,
    read_hunt,
    read_pairs,
)  # fmt: skip
from collbench.plugins.hunt.text import SUSPECTS, json_lines
from collbench.reason import Text
from collbench.report.forms import FORMATS, write
from collbench.results.folder import RunFolder
from collbench.results.reader import Run, read_run
from tests.stored import stored_reports

SIZE = 1000
PLACES = ["a", "b", "c", "d"]
ABOUT = {
    "hunt": {"places": PLACES, "verdict": None}, "pairs": {"places": PLACES, "size_bytes": SIZE, "latency_size_bytes": 8},
}  # fmt: skip
SUSPECT = {
    "kind": "node", "places": [1], "state": "confirmed", "ratio": 0.5, "low": 0.49, "high": None, "partners": [0, 2],
    "evidence": ["slow with a and c"], "part": "",
}  # fmt: skip
VERDICT = {
    "result": "confirmed", "suspects": [SUSPECT], "rounds": {"sweep": 3}, "notes": [], "no_verdict": None, "middle": 1e9,
}  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 9) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)
SECONDS = st.none() | st.floats(1e-9, 10)
FILES = {"hunt": HUNT_FILE, "pairs": PAIRS_FILE}
PARSERS = {
    "hunt": lambda values, places: decoded_round(values, HuntRound, places),
    "pairs": lambda values, places: decoded_round(values, PairRound, places),
}
both = pytest.mark.parametrize("kind", ["hunt", "pairs"])


def a_round(number=0, groups=((0, 1), (2, 3)), **changes):
    each, n = (1e9,) * len(groups), len(groups)
    one = HuntRound(number, "pairs", "sweep", "round 1 of 3", groups, each, each, (1e-6,) * n, each, each, (0,) * n, (None,) * n)
    return one.replace(**changes)


def a_pair_round(number=0, pairs=((0, 1), (2, 3)), seconds=1e-6, **changes):
    each, near = (seconds,) * len(pairs), ((seconds, seconds * 2),) * len(pairs)
    one = PairRound(number, pairs, each, near, each, near, each, near, (0,) * len(pairs), (None,) * len(pairs), (6, 6, 6))
    return one.replace(**changes)


MAKE = {"hunt": a_round, "pairs": a_pair_round}


@pytest.fixture
def stored(tmp_path):
    """Writes rounds of a kind, and raw bytes behind them; returns how they read."""

    def these(kind, *rounds, tail=b"", about=None):
        folder = RunFolder.create(tmp_path / "run", kind, {kind: ABOUT[kind] if about is None else about})
        for one in rounds:
            folder.append_record(one.as_json(), FILES[kind])
        folder.finish()
        with (tmp_path / "run" / FILES[kind]).open("ab") as file:
            file.write(tail)
        run = read_run(tmp_path / "run")
        return read_hunt(run) if kind == "hunt" else read_pairs(run)

    return these


def test_a_hunt_that_was_written_is_read(stored, tmp_path):
    rounds = [
        a_round(0),
        a_round(1, ((0, 2, 3),), kind="groups", stage="growing", backward_bytes_per_s=(None,), latency_s=(None,), flags=("simulated",)),
        a_round(2, ((1, 3),), kind="nic", nic="eth1", na=("not there",), speed_bytes_per_s=(None,), wrong_detail=(None,)),
    ]
    found = stored("hunt", *rounds, about={**ABOUT["hunt"], "verdict": VERDICT})
    assert (found.rounds, found.warnings, found.about["verdict"]) == (rounds, [], VERDICT)
    assert HuntKind().holds(read_run(tmp_path / "run")) and json.loads((tmp_path / "run" / "run.json").read_text())["rows"] == 3
    (tmp_path / "run" / "run.json").unlink()
    with pytest.raises(UsageError, match="already holds a run"):
        RunFolder.create(tmp_path / "run", "hunt", {})


def test_pairs_that_were_written_are_read(stored, tmp_path):
    rounds = [
        a_pair_round(0), a_pair_round(1, ((0, 2),), again=True, flags=("simulated",)),
        a_pair_round(2, ((1, 3),), na=("not there",), wrong=(None,)),
    ]  # fmt: skip
    found = stored("pairs", *rounds)
    assert (found.rounds, found.warnings, found.about) == (rounds, [], ABOUT["pairs"])
    assert found.matrix().places == tuple(PLACES)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["rows"] == 3


@both
def test_a_run_that_was_stopped_ends_with_its_last_whole_round(kind, stored):
    found = stored(kind, MAKE[kind](0), tail=b'{"round":1,"pairs":[[0')
    assert found.rounds == [MAKE[kind](0)]
    assert len(found.warnings) == 1 and f"{FILES[kind]} ends in the middle of line 2: " in found.warnings[0]


MISFITS = [
    ("hunt", "groups", [[0, 1], [1, 2]]), ("hunt", "groups", [[0, 4]]), ("hunt", "groups", [[]]), ("hunt", "groups", 3),
    ("hunt", "kind", "triples"), ("hunt", "kind", None), ("hunt", "speed_bytes_per_s", [1e9]), ("hunt", "speed_bytes_per_s", [0, 1e9]),
    ("hunt", "low_bytes_per_s", [-1, 1]), ("hunt", "wrong", [0, -1]), ("hunt", "wrong", [0, True]), ("hunt", "na", [None, 7]),
    ("hunt", "round", -1), ("hunt", "flags", [1]), ("hunt", "why", None), ("hunt", "nic", 5), ("hunt", "latency_s", ["1", 1]),
    ("pairs", "pairs", [[0, 1], [1, 2]]), ("pairs", "pairs", [[0, 1], [2, 4]]), ("pairs", "forward_s", [1.0]), ("pairs", "n", [1, 2]),
    ("pairs", "latency_ci_s", [[1, 2], [-1, 1]]), ("pairs", "again", 1), ("pairs", "cpu_wait", [2]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "name", "value"), MISFITS)
def test_a_line_that_does_not_fit_is_left_out_and_named(kind, name, value, stored):
    make = MAKE[kind]
    bad = {**make(1).as_json(), name: value}
    found = stored(kind, make(0), tail=json.dumps(bad).encode() + b"\n" + json.dumps(make(2).as_json()).encode() + b"\n")
    assert found.rounds == [make(0), make(2)]
    assert len(found.warnings) == 1 and f"line 2: '{name}' is " in found.warnings[0]


@both
@given(data=st.data(), value=JSON)
@settings(max_examples=200, deadline=None)
def test_any_other_value_is_refused_or_makes_a_round(kind, data, value):
    whole = MAKE[kind]().as_json()
    name = data.draw(st.sampled_from(sorted(whole)))
    text = json.dumps({**whole, name: value}).replace("NaN", "null").replace("-Infinity", "0").replace("Infinity", "0")
    try:
        found = PARSERS[kind](json.loads(text), 4)
    except ValueError as refusal:
        assert name in str(refusal) or name in ("pairs", "groups")  # of fewer pairs, the other lists are too long
        return
    assert PARSERS[kind](json.loads(json.dumps(found.as_json())), 4) == found
    if kind == "pairs":
        matrix = matrix_of(ABOUT["pairs"], [found])
        assert not np.isinf(matrix.bandwidth).any() and not (matrix.latency_s < 0).any()


@pytest.mark.parametrize(("kind", "about", "problem"), [
    *(("hunt", about, "the list of places") for about in ({"a": 1}, {"places": []}, {"places": ["a", 3]}, {"places": "ab"})),
    ("hunt", {"places": ["a"], "crossed": [1]}, "the links"),
    *(("pairs", about, "places or sizes") for about in ({"a": 1}, [], {"places": ["a"]}, {"size_bytes": 0})),
    ("pairs", {"latency_size_bytes": "8"}, "places or sizes"), ("pairs", {"judged": [{**SUSPECT, "places": [4]}]}, "judged suspects"),
    *((kind, {"hosts": hosts}, "list of hosts") for kind in ABOUT for hosts in (None, "abcd", ["a"], ["a", "b", "c", 4])),
])  # fmt: skip
def test_a_run_json_that_does_not_fit_is_refused(kind, about, problem, stored):
    whole = {**ABOUT[kind], **about} if isinstance(about, dict) and "a" not in about else about
    with pytest.raises(UsageError, match=rf"{problem}.*it was altered$"):
        stored(kind, MAKE[kind](), about=whole)


@given(where=st.sampled_from(["verdict", "suspect"]), name=st.text(max_size=3) | st.sampled_from([*VERDICT, *SUSPECT]), value=JSON)
@settings(max_examples=200, deadline=None)
def test_a_verdict_that_was_altered_is_refused_or_whole(where, name, value):
    verdict = {**VERDICT, name: value} if where == "verdict" else {**VERDICT, "suspects": [{**SUSPECT, name: value}]}
    about = {**ABOUT["hunt"], "verdict": verdict}
    try:
        check_hunt(Run(Path("run"), {"hunt": about}))
    except UsageError:
        return
    hunt = StoredHunt(about, [])
    assert json.loads("".join(json_lines(hunt)))["result"] in ("confirmed", "nobody", "no verdict")
    for format in FORMATS:
        write(SUSPECTS, hunt, format, io.StringIO(), color=False)


def test_the_hosts_of_places_are_stored_or_in_the_names_of_ranks_and_other_runs_have_no_pairs(stored, tmp_path):
    about = {**ABOUT["pairs"], "hosts": ["n1", "n1", "n2", "n2"]}
    assert stored("pairs", a_pair_round(0), about=about).matrix().hosts == place_hosts(about) == ("n1", "n1", "n2", "n2")
    own = ["node1", "rack 2 (node1)", "gpu (node1)", "rank x (node1)", "rank 3 (node1) ", "rank 3 ()"]
    assert place_hosts({"places": ["rank 3 (node1)", "rank 12 (a (b))", *own]}) == ("node1", "a (b)", *own)
    found = read_pairs(read_run(stored_reports() / "pairs-under-load"))
    assert "hosts" not in found.about
    assert found.matrix().hosts == tuple(found.about["places"])
    RunFolder.create(tmp_path / "other", "allreduce", {}).finish()
    assert read_pairs(read_run(tmp_path / "other")) is None


@given(st.lists(SECONDS, min_size=3, max_size=3))
@settings(max_examples=100, deadline=None)
def test_the_matrix_has_the_sender_in_its_row(times):
    latency, forward, backward = times
    one = a_pair_round(0, ((2, 1),), latency_s=(latency,), forward_s=(forward,), backward_s=(backward,), forward_ci_s=((1e-3, 2e-3),))
    matrix = matrix_of(ABOUT["pairs"], [one])
    for value, seconds in ((matrix.bandwidth[2, 1], forward), (matrix.bandwidth[1, 2], backward)):
        assert np.isnan(value) if seconds is None else value == SIZE / seconds
    assert np.array_equal(matrix.latency_s, matrix.latency_s.T, equal_nan=True)
    assert (matrix.low[2, 1], matrix.high[2, 1]) == (SIZE / 2e-3, SIZE / 1e-3)
    assert np.isnan(matrix.bandwidth[0]).all()


@pytest.mark.parametrize(("forward", "backward", "speeds", "interval"), [
    (1e-6, 4e-6, (1e9, 2.5e8), (2e8, 5e8)), (4e-6, 1e-6, (2.5e8, 1e9), (1e8, 4e8)), (1e-6, None, (1e9, None), (1e8, 4e8)),
    (None, 1e-6, (None, 1e9), (2e8, 5e8)),
])  # fmt: skip
def test_the_result_of_a_pair_has_both_speeds_and_the_interval_of_the_slower_direction(forward, backward, speeds, interval):
    one = a_pair_round(
        0, ((0, 1),), forward_s=(forward,), backward_s=(backward,), latency_s=(3e-6,), wrong=(7,),
        forward_ci_s=((2.5e-6, 1e-5),), backward_ci_s=((2e-6, 5e-6),),
    )  # fmt: skip
    figure, missing = result_of_pairs([(0, 1), (2, 3)], [one], SIZE).figures
    assert (figure.speed, figure.backward) == pytest.approx(speeds)
    assert (figure.low, figure.high) == pytest.approx(interval)
    assert (figure.latency_s, figure.wrong, figure.na) == (3e-6, 7, None)
    assert missing.speed is None and missing.na


def test_a_suspect_is_read_as_it_was_stored_and_one_without_figures_has_no_ratio():
    suspect = Suspect("path", (2, 3), CONFIRMED, 0.5, 0.4, 0.6, (0, 1), (Text("slow with a"), Text("and with b")), Text("its cable"))
    read = msgspec.json.decode(json.dumps(suspect.as_json()), type=StoredSuspect)
    assert (read.kind, read.places, read.state, read.partners) == ("path", (2, 3), "confirmed", (0, 1))
    assert (read.ratio, read.low, read.high) == (0.5, 0.4, 0.6)
    assert (read.evidence, read.part) == (["slow with a", "and with b"], "its cable")
    read = msgspec.json.decode(json.dumps(Suspect("node", (1,), INCONCLUSIVE, nan).as_json()), type=StoredSuspect)
    assert (read.state, read.ratio, read.low, read.part, read.part_fact) == ("inconclusive", None, None, "", None)


@pytest.mark.parametrize(("first", "second"), [(1e-6, 2e-6), (2e-6, 1e-6)])
def test_of_two_rounds_the_faster_counts_and_all_wrong_data(first, second):
    rounds = [a_pair_round(0, ((0, 1),), first, wrong=(3,)), a_pair_round(1, ((0, 1),), second, again=True)]
    matrix = matrix_of(ABOUT["pairs"], rounds)
    assert (matrix.bandwidth[0, 1], matrix.latency_s[1, 0], matrix.wrong[0, 1], matrix.wrong[1, 0]) == (SIZE / 1e-6, 1e-6, 3, 3)
    assert (matrix.low[0, 1], matrix.high[0, 1]) == (SIZE / 2e-6, SIZE / 1e-6)
    assert matrix.latency_spread[0, 1] == matrix.latency_spread[1, 0] == 2
    refused = [*rounds, a_pair_round(2, ((0, 1),), forward_s=(None,), na=("gone",), again=True)]
    assert matrix_of(ABOUT["pairs"], refused).bandwidth[0, 1] == SIZE / 1e-6


def test_each_way_has_its_own_faster_round_with_its_own_interval_and_a_rate_only_above_the_clock():
    rounds = [a_pair_round(0, ((0, 1),), forward_s=(1e-6,), backward_s=(4e-6,), backward_ci_s=((3e-6, 5e-6),)),
              a_pair_round(1, ((0, 1),), forward_s=(4e-6,), backward_s=(1e-6,), again=True, forward_ci_s=((None, None),))]  # fmt: skip
    matrix = matrix_of(ABOUT["pairs"], rounds)
    for figures, seconds in ((matrix.bandwidth, 1e-6), (matrix.low, 2e-6), (matrix.high, 1e-6)):
        assert figures[0, 1] == figures[1, 0] == SIZE / seconds
    assert np.isnan(matrix_of(ABOUT["pairs"], [a_pair_round(0, ((0, 1),), forward_ci_s=((0.0, 1e-6),))]).high[0, 1])


def test_a_matrix_larger_than_the_memory_is_refused_before_it_is_made(stored, monkeypatch):
    """Twenty thousand names take 200 kB, and their matrix 60 GB."""
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=8 << 30))
    with pytest.raises(UsageError, match=r"20,000 .*59\.6 GiB .* 8 GiB"):
        stored("pairs", a_pair_round(), about={**ABOUT["pairs"], "places": [str(place) for place in range(20_000)]})
