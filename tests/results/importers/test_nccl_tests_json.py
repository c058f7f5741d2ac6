"""nccl-tests' JSON: the same rows as its text, with names, arguments and the variables that steer NCCL; no secrets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.errors import UsageError
from collbench.results.importers.importer import ImportedTable, UserInput
from collbench.results.importers.nccl_tests import knows_json, read_json

TEXT = (Path(__file__).parent / "samples" / "nccl_tests.json").read_text()


def of(**changes: Any) -> ImportedTable:
    document = json.loads(TEXT) | changes
    runs = read_json(json.dumps(document).splitlines(), UserInput()).runs
    assert len(runs) == 1
    return runs[0]


def config(**changes: Any) -> dict[str, Any]:
    return {"config": json.loads(TEXT)["config"] | changes}


def test_what_it_reports() -> None:
    run = of()
    assert knows_json(TEXT.splitlines())
    assert (run.tool, run.program, run.facts["library"], list(run.hosts)) == (
        "nccl-tests",
        "all_reduce_perf",
        "2.29.7",
        ["node01", "node01"],
    )
    assert run.statistic == "the mean over 20 iterations, the most of the ranks"
    assert run.facts["environment"] == {"NCCL_DEBUG": "INFO", "SLURM_JOB_ID": "77"}
    assert run.facts["devices"][1] == {"rank": 1, "host": "node01", "device": 1, "gpu": "0000:3b:00", "name": "NVIDIA H100 80GB HBM3"}


def test_figures_of_both_placings_and_none_where_there_is_no_time() -> None:
    first, second = of().rows
    assert first.time_s is not None and second.time_s is not None
    assert (first.in_place, first.mode, first.ranks, first.nodes, first.wrong) == (False, "graph", 2, 1, 0)
    assert (first.time_s.p50, first.time_s.min, first.time_s.p95, first.time_s.max) == pytest.approx((40e-6, 38e-6, 50e-6, 55e-6))
    assert (second.in_place, second.wrong, second.time_s.min) == (True, 3, None)
    assert second.busbw_bytes_per_s == pytest.approx(29.959e9, rel=1e-4)


def test_blocking_is_reported_by_the_arguments() -> None:
    run = of(**config(blocking_collectives="true", graph=0), args=["all_reduce_perf", "--blocking=2"])
    assert run.rows[0].mode == "isolated"
    assert run.statistic == "the mean over 20 iterations, waited for after each, averaged over the ranks"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (TEXT[:900], "the program was stopped"),
        (
            json.dumps(json.loads(TEXT) | {"version": 4}),
            "unknown version 4",
        ),
        (json.dumps(json.loads(TEXT) | {"results": []}), "no results"),
        (TEXT.replace('"time"', '"cpu_time"'), "CPU times"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(UsageError) as said:
        read_json(text.splitlines(), UserInput())
    assert sentence in str(said.value)


_VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["size", "time", "rank", "type"]), inner, max_size=3)
    ),
    max_leaves=6,
)


_KEYS = st.sampled_from(["results", "config", "args", "env", "nccl_version", "out_of_bounds", "version"])
_FIELDS = st.sampled_from(["size", "count", "type", "redop", "root", "out_of_place", "in_place", "in_place_per_iter"])


@settings(max_examples=60, deadline=None)
@given(_KEYS, _VALUES, _FIELDS, _VALUES)
def test_any_object_gives_rows_or_one_sentence(key: str, value: Any, inner: str, other: Any) -> None:
    document = json.loads(TEXT)
    document["results"][0][inner] = other
    document[key] = value
    try:
        runs = read_json([json.dumps(document)], UserInput()).runs
    except UsageError as error:
        assert "\n" not in str(error)
        return
    assert all(row.time_s and row.time_s.p50 > 0 for run in runs for row in run.rows)
