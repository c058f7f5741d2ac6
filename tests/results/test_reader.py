"""Reading runs back: whole ones, cut ones, newer ones and hostile ones."""

from __future__ import annotations

import io
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collbench.errors import UsageError
from collbench.report.summary import report_run
from collbench.report.terminal import FORMATS
from collbench.results.folder import RunFolder
from collbench.results.reader import read_run, row_from_json
from tests.results.rows import make_row, not_measured, store

FUZZ = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path, tmp_path / "missing", tmp_path / "file"):
        with pytest.raises(UsageError, match="is not a run folder"):
            read_run(path)


def test_a_line_cut_anywhere_loses_only_itself(tmp_path: Path) -> None:
    path = store(tmp_path / "run", [make_row(8), make_row(16)])
    whole = (path / "cells.jsonl").read_bytes()
    start = whole.index(b"\n") + 1
    for end in range(start, len(whole) - 1, 7):
        (path / "cells.jsonl").write_bytes(whole[:end])
        run = read_run(path)
        assert [row.size_bytes for row in run.rows] == [8]
        assert run.warnings == ([] if end == start else [f"{path}/cells.jsonl ends in the middle of line 2: the run was stopped there"])


def test_a_run_without_run_json_still_gives_its_rows(tmp_path: Path) -> None:
    path = store(tmp_path / "run", [make_row()])
    (path / "run.json").unlink()
    run = read_run(path)
    assert (len(run.rows), run.info) == (1, {})
    assert run.warnings == [f"{path}/run.json is not JSON (JSONDecodeError): what was run is unknown"]


def test_a_newer_schema_is_read_as_far_as_it_is_known(tmp_path: Path) -> None:
    path = store(tmp_path / "run", [], schema=2)
    newer = make_row().as_json()
    newer["colour"] = "blue"
    newer["ceiling"]["altitude"] = 3
    (path / "cells.jsonl").write_text(json.dumps(newer) + "\n")
    run = read_run(path)
    assert run.rows == [make_row()]
    assert run.warnings[0].startswith(f"{path}/run.json was written by a newer collbench (schema 2, this one knows 1)")


@pytest.mark.parametrize(
    ("version", "told"),
    [
        ("2.1.0", "collbench 2.1.0 or newer reads all of it"),
        ("3.0rc1", "collbench 3.0rc1 or newer reads all of it"),
        ("\x1b[2J now", "the version that wrote it reads all of it"),
        (None, "the version that wrote it reads all of it"),
    ],
)
def test_a_newer_schema_says_which_version_reads_it(tmp_path: Path, version: str | None, told: str) -> None:
    path = store(tmp_path / "run", [make_row()], schema=2, collbench=version)
    assert read_run(path).warnings == [
        f"{path}/run.json was written by a newer collbench (schema 2, this one knows 1): what is unknown here is left out; {told}"
    ]


@pytest.mark.parametrize(
    ("change", "misfit"),
    [
        ({"size_bytes": "8"}, "'size_bytes' is '8'"),
        ({"size_bytes": True}, "'size_bytes' is 'True'"),
        ({"flags": [1]}, "'flags' is"),
        ({"time_s": {"p50": "x"}}, "fields are missing or misplaced"),
        ({"time_s": 3}, "fields are missing or misplaced"),
        ({"evidence": []}, "'evidence' is"),
        ({"percent_of_ceiling": "84"}, "'percent_of_ceiling' is '84'"),
    ],
)
def test_fields_of_the_wrong_type_are_named(change: dict[str, Any], misfit: str) -> None:
    with pytest.raises(ValueError, match=misfit):
        row_from_json({**make_row().as_json(), **change})


def test_every_row_survives_being_written_and_read() -> None:
    for row in (make_row(), not_measured("no bfloat16 sum"), make_row(flags=("a", "b"), hard_bound=make_row().ceiling, window=64)):
        assert row_from_json(json.loads(json.dumps(row.as_json()))) == row


@pytest.mark.parametrize(
    "place",
    [
        {"offset": 0, "dtype": "|O8", "shape": [1]},
        {"offset": 0, "dtype": "<f1", "shape": [1]},
        {"offset": -8, "dtype": "<f8", "shape": [1]},
        {"offset": 0, "dtype": "<f8", "shape": [-1]},
        {"offset": 0, "dtype": "<f8", "shape": [10**12, 10**12]},
        {"offset": 2**62, "dtype": "<f8", "shape": [1]},
        {"offset": 0, "dtype": "<f8", "shape": [2**62, 0, 2**62]},
        {"offset": 1.5, "dtype": "<f8", "shape": [1]},
        {"offset": 0, "dtype": "<f8"},
        "samples",
    ],
)
def test_a_place_outside_the_file_is_refused(tmp_path: Path, place: Any) -> None:
    folder = RunFolder.create(tmp_path / "run", "allreduce", {})
    row = replace(folder.append(make_row(), {"max_s": np.ones(4)}), samples={"max_s": place})
    with pytest.raises(UsageError, match="max_s"):
        read_run(folder.path).array(row, "max_s")


def test_pipes_and_devices_in_a_files_place_do_not_block(tmp_path: Path) -> None:
    path = store(tmp_path / "run", [make_row()])
    (path / "events.jsonl").unlink()
    os.mkfifo(path / "events.jsonl")
    (path / "run.json").unlink()
    (path / "run.json").symlink_to("/dev/zero")
    assert len(read_run(path).rows) == 1


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@FUZZ
@given(run=st.binary(max_size=200), cells=st.binary(max_size=200), events=st.binary(max_size=100))
def test_arbitrary_bytes_never_raise_anything_else(tmp_path: Path, run: bytes, cells: bytes, events: bytes) -> None:
    for name, data in (("run.json", run), ("cells.jsonl", cells), ("events.jsonl", events)):
        (tmp_path / name).write_bytes(data)
    _read_and_report(tmp_path)


@FUZZ
@given(data=st.data())
def test_arbitrary_values_in_a_row_never_raise_anything_else(tmp_path: Path, data: st.DataObject) -> None:
    values = make_row().as_json()
    for name in data.draw(st.sets(st.sampled_from(sorted(values)), max_size=4)):
        like = st.text() if isinstance(values[name], str) else st.integers() if isinstance(values[name], int) else _JSON
        values[name] = data.draw(like | _JSON)
    info = {"schema": data.draw(_JSON), "rank_map": data.draw(_JSON | st.lists(st.fixed_dictionaries({"rank": _JSON, "host": _JSON})))}
    (tmp_path / "cells.jsonl").write_text(json.dumps(values) + "\n" + json.dumps(make_row().as_json()) + "\n")
    (tmp_path / "run.json").write_text(json.dumps({**info, "launches": data.draw(_JSON)}))
    _read_and_report(tmp_path)


@pytest.mark.parametrize("bomb", [b"[" * 100_000, b'{"a":' * 100_000, b"1" * 10_000, b'{"size_bytes":1e999}', b'"\\ud800"', b"\xff\xfe"])
def test_bombs_are_left_out(tmp_path: Path, bomb: bytes) -> None:
    path = store(tmp_path / "run", [make_row()])
    (path / "cells.jsonl").write_bytes(bomb + b"\n" + (path / "cells.jsonl").read_bytes())
    run = read_run(path)
    assert len(run.rows) == 1
    assert run.warnings[0].startswith(f"{path}/cells.jsonl: 1 lines are left out, the first is line 1: ")


def _read_and_report(path: Path) -> None:
    """Reads and prints in every format; nothing printed can steer a terminal."""
    try:
        run = read_run(path)
    except UsageError:
        return
    for row in run.rows:
        for name in row.samples:
            try:
                run.array(row, name)
            except UsageError:
                continue
    for format in FORMATS:
        out, err = io.StringIO(), io.StringIO()
        report_run([path], None, format, out, err=err)
        text = (out.getvalue().replace("\r\n", "\n") if format == "csv" else out.getvalue()) + err.getvalue()
        assert all(letter.isprintable() or letter == "\n" for letter in text)
