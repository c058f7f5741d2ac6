"""Rounds of pairs: written, read back for all contents of the file, and combined into a matrix."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.errors import UsageError
from collbench.results.folder import RunFolder
from collbench.results.reader import read_run
from collbench.results.rounds import PAIRS, PairRound, matrix_of, pair_round_from_json, place_hosts, read_pairs

SIZE = 1000
ABOUT = {"places": ["a", "b", "c", "d"], "size_bytes": SIZE, "latency_size_bytes": 8}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 9) | st.floats() | st.text(max_size=3), lambda inner: st.lists(inner, max_size=3)
)
SECONDS = st.none() | st.floats(1e-9, 10)


def a_round(number=0, pairs=((0, 1), (2, 3)), seconds=1e-6, **changes):
    each = (seconds,) * len(pairs)
    near = ((seconds, seconds * 2),) * len(pairs)
    return replace(
        PairRound(number, pairs, each, near, each, near, each, near, (0,) * len(pairs), (None,) * len(pairs), (6, 6, 6)), **changes
    )


@pytest.fixture
def stored(tmp_path):
    """Writes rounds, and raw bytes behind them; returns how they read."""

    def these(*rounds, tail=b"", about=ABOUT):
        folder = RunFolder.create(tmp_path / "run", "pairs", {"pairs": about})
        for one in rounds:
            folder.append_round(one.as_json())
        folder.finish()
        with (tmp_path / "run" / PAIRS).open("ab") as file:
            file.write(tail)
        return read_pairs(read_run(tmp_path / "run"))

    return these


def test_what_was_written_is_read(stored):
    rounds = [a_round(0), a_round(1, ((0, 2),), again=True, flags=("simulated",)), a_round(2, ((1, 3),), na=("not there",), wrong=(None,))]
    found = stored(*rounds)
    assert (found.rounds, found.warnings, found.about) == (rounds, [], ABOUT)
    assert found.matrix().places == ("a", "b", "c", "d")


def test_the_hosts_of_places_are_stored(stored):
    about = {**ABOUT, "hosts": ["n1", "n1", "n2", "n2"]}
    assert stored(a_round(0), about=about).matrix().hosts == place_hosts(about) == ("n1", "n1", "n2", "n2")


def test_runs_without_hosts_have_them_in_the_names_of_ranks():
    names = [
        "rank 3 (node1)",
        "rank 12 (a (b))",
        "node1",
        "rack 2 (node1)",
        "gpu (node1)",
        "rank x (node1)",
        "rank 3 (node1) ",
        "rank 3 ()",
    ]
    assert place_hosts({"places": names}) == ("node1", "a (b)", *names[2:])


def test_a_stored_run_without_hosts_loads():
    found = read_pairs(read_run(Path(__file__).parents[2] / "reports/pairs-under-load"))
    assert found is not None and "hosts" not in found.about
    assert found.matrix().hosts == tuple(found.about["places"])


@pytest.mark.parametrize("hosts", [None, "abcd", ["a"], ["a", "b", "c", 4]])
def test_hosts_that_do_not_fit_the_places_are_refused(stored, hosts):
    with pytest.raises(UsageError, match="list of hosts"):
        stored(a_round(0), about={**ABOUT, "hosts": hosts})


def test_rounds_count_as_rows_of_the_run(stored, tmp_path):
    stored(a_round(0), a_round(1))
    assert json.loads((tmp_path / "run" / "run.json").read_text())["rows"] == 2


def test_a_run_that_was_stopped_ends_with_its_last_whole_round(stored):
    found = stored(a_round(0), tail=b'{"round":1,"pairs":[[0')
    assert found.rounds == [a_round(0)]
    assert len(found.warnings) == 1 and f"{PAIRS} ends in the middle of line 2: " in found.warnings[0]


def test_a_line_that_does_not_fit_is_left_out_and_named(stored):
    bad = {**a_round(1).as_json(), "pairs": [[0, 1], [1, 2]]}
    found = stored(a_round(0), tail=json.dumps(bad).encode() + b"\n" + json.dumps(a_round(2).as_json()).encode() + b"\n")
    assert found.rounds == [a_round(0), a_round(2)]
    assert len(found.warnings) == 1 and found.warnings[0].endswith("1 line is left out, the first is line 2: 'pairs' is '((0, 1), (1, 2))'")


def test_another_run_has_no_pairs(tmp_path):
    RunFolder.create(tmp_path / "run", "allreduce", {}).finish()
    assert read_pairs(read_run(tmp_path / "run")) is None


@pytest.mark.parametrize("about", [{}, [], {**ABOUT, "places": ["a"]}, {**ABOUT, "size_bytes": 0}, {**ABOUT, "latency_size_bytes": "8"}])
def test_rounds_without_their_places_are_refused(stored, about):
    with pytest.raises(UsageError, match="places or sizes"):
        stored(a_round(), about=about)


@given(st.sampled_from(sorted(a_round().as_json())), JSON)
@settings(max_examples=150, deadline=None)
def test_any_other_value_is_refused_or_makes_a_matrix(name, value):
    values = json.loads(
        json.dumps({**a_round().as_json(), name: value}).replace("NaN", "null").replace("-Infinity", "0").replace("Infinity", "0")
    )
    try:
        found = pair_round_from_json(values, 4)
    except ValueError as refusal:
        assert name in str(refusal) or name == "pairs"  # of fewer pairs, the other lists are too long
    else:
        matrix = matrix_of(ABOUT, [found])
        assert not np.isinf(matrix.bandwidth).any() and not (matrix.latency_s < 0).any()


@given(st.lists(SECONDS, min_size=3, max_size=3))
@settings(max_examples=100, deadline=None)
def test_the_matrix_has_the_sender_in_its_row(times):
    latency, forward, backward = times
    one = a_round(0, ((2, 1),), latency_s=(latency,), forward_s=(forward,), backward_s=(backward,), forward_ci_s=((1e-3, 2e-3),))
    matrix = matrix_of(ABOUT, [one])
    for value, seconds in ((matrix.bandwidth[2, 1], forward), (matrix.bandwidth[1, 2], backward)):
        assert np.isnan(value) if seconds is None else value == SIZE / seconds
    assert np.array_equal(matrix.latency_s, matrix.latency_s.T, equal_nan=True)
    assert (matrix.low[2, 1], matrix.high[2, 1]) == (SIZE / 2e-3, SIZE / 1e-3)
    assert np.isnan(matrix.bandwidth[0]).all()


@pytest.mark.parametrize(("first", "second"), [(1e-6, 2e-6), (2e-6, 1e-6)])
def test_of_two_looks_the_faster_counts_and_all_wrong_data(first, second):
    rounds = [a_round(0, ((0, 1),), first, wrong=(3,)), a_round(1, ((0, 1),), second, again=True)]
    matrix = matrix_of(ABOUT, rounds)
    assert (matrix.bandwidth[0, 1], matrix.latency_s[1, 0], matrix.wrong[0, 1], matrix.wrong[1, 0]) == (SIZE / 1e-6, 1e-6, 3, 3)
    assert (matrix.low[0, 1], matrix.high[0, 1]) == (SIZE / 2e-6, SIZE / 1e-6)
    assert matrix.latency_spread is not None and matrix.latency_spread[0, 1] == matrix.latency_spread[1, 0] == 2
    refused = [*rounds, a_round(2, ((0, 1),), forward_s=(None,), na=("gone",), again=True)]
    assert matrix_of(ABOUT, refused).bandwidth[0, 1] == SIZE / 1e-6


def test_each_way_has_its_own_faster_look_with_its_own_interval():
    looks = [a_round(0, ((0, 1),), forward_s=(1e-6,), backward_s=(4e-6,), backward_ci_s=((3e-6, 5e-6),)),
             a_round(1, ((0, 1),), forward_s=(4e-6,), backward_s=(1e-6,), again=True, forward_ci_s=((None, None),))]  # fmt: skip
    matrix = matrix_of(ABOUT, looks)
    for figures, seconds in ((matrix.bandwidth, 1e-6), (matrix.low, 2e-6), (matrix.high, 1e-6)):
        assert figures[0, 1] == figures[1, 0] == SIZE / seconds


def test_a_time_below_the_clock_has_no_rate():
    one = a_round(0, ((0, 1),), forward_ci_s=((0.0, 1e-6),))
    assert np.isnan(matrix_of(ABOUT, [one]).high[0, 1])


def test_a_matrix_larger_than_the_memory_is_refused_before_it_is_made(stored, monkeypatch):
    """Twenty thousand names take 200 kB, and their matrix 60 GB."""
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=8 << 30))
    places = [str(place) for place in range(20_000)]
    with pytest.raises(UsageError, match=r"20,000 .*59\.6 GiB .* 8 GiB"):
        stored(a_round(), about={**ABOUT, "places": places})
