"""Reading runs back: whole ones, cut ones, newer ones and hostile ones; JSON as a run's folder holds it."""

import io
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import asdict, replace

from collbench.errors import UsageError
from collbench.report import FORMATS
from collbench.report.cases import name_of, value_of
from collbench.report.runs import report_run
from collbench.results.folder import RunFolder
from collbench.results.reader import read_run, row_from_json
from collbench.results.store import parse_object, plain, to_line
from tests.results.rows import make_row, not_measured, store

FUZZ = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def test_a_line_cut_anywhere_loses_only_itself(tmp_path: Path) -> None:
    path = store(tmp_path / "run", [make_row(8), make_row(16)])
    whole = (path / "cells.jsonl").read_bytes()
    start = whole.index(b"\n") + 1
    for end in range(start, len(whole) - 1, 7):
        (path / "cells.jsonl").write_bytes(whole[:end])
        run = read_run(path)
        cut = [] if end == start else [f"{path}/cells.jsonl ends in the middle of line 2"]
        assert ([row.size_bytes for row in run.rows], [warning.partition(": ")[0] for warning in run.warnings]) == ([8], cut)


@pytest.mark.parametrize(("version", "expected"), [
    ("2.1.0", "collbench 2.1.0 or newer"), ("3.0rc1", "collbench 3.0rc1 or newer"),
    ("\x1b[2J now", "the version that wrote it"), (None, "the version that wrote it"),
])  # fmt: skip
def test_a_newer_schema_is_read_as_far_as_it_is_known_and_reports_which_version_reads_it(tmp_path, version, expected):
    path = store(tmp_path / "run", [], schema=2, collbench=version)
    newer = {**make_row().as_json(), "colour": "blue"}
    newer["ceiling"]["altitude"] = 3
    (path / "cells.jsonl").write_text(json.dumps(newer) + "\n")
    run = read_run(path)
    assert run.rows == [make_row()]
    (warning,) = run.warnings
    assert warning.startswith(f"{path}/run.json was written by a newer collbench (schema 2, ") and f"; {expected} " in warning


@pytest.mark.parametrize(("change", "misfit"), [
    ({"size_bytes": "8"}, "'size_bytes' is '8'"), ({"size_bytes": True}, "'size_bytes' is 'True'"), ({"flags": [1]}, "'flags' is"),
    ({"time_s": {"p50": "x"}}, "'time_s.p50' is 'x'"), ({"time_s": {"p50": 1.0}}, "fields are missing or misplaced"),
    ({"time_s": {**asdict(make_row().time_s), "p99": -1.0}}, "'time_s.p99' is '-1.0'"), ({"time_s": 3}, "'time_s' is '3'"),
    ({"modes": [{"share": "much"}]}, "'modes' is"), ({"canary_s": {"before": [1]}}, "'canary_s' is"), ({"evidence": []}, "'evidence' is"),
    ({"percent_of_ceiling": "84"}, "'percent_of_ceiling' is '84'"),
])  # fmt: skip
def test_fields_of_the_wrong_type_are_named(change: dict[str, Any], misfit: str) -> None:
    with pytest.raises(ValueError, match=misfit):
        row_from_json({**make_row().as_json(), **change})


def test_every_row_survives_being_written_and_read_also_by_another_name_of_its_operation() -> None:
    for row in (make_row(), not_measured("no bfloat16 sum"), make_row(flags=("a", "b"), hard_bound=make_row().ceiling, window=64)):
        assert row_from_json(json.loads(json.dumps(row.as_json()))) == row
    for name in ("neighbor_alltoall", "neighbor-alltoall"):
        row = row_from_json({**make_row().as_json(), "operation": name})
        assert (row.operation, value_of(row, "operation")) == ("neighbor_alltoall", "neighbor-alltoall")
        assert name_of(row) == "neighbor-alltoall 64 MiB"
    values = make_row().as_json()
    row = row_from_json({**values, "time_s": {**values["time_s"], "p50": None}})
    assert (row.na, row.time_s) == ("its time is not a number", None)
    assert row.algbw_bytes_per_s is row.busbw_bytes_per_s is row.percent_of_ceiling is None


@pytest.mark.parametrize("place", [
    {"offset": 0, "dtype": "|O8", "shape": [1]}, {"offset": 0, "dtype": "<f1", "shape": [1]}, {"offset": -8, "dtype": "<f8", "shape": [1]},
    {"offset": 0, "dtype": "<f8", "shape": [-1]}, {"offset": 0, "dtype": "<f8", "shape": [10**12, 10**12]},
    {"offset": 2**62, "dtype": "<f8", "shape": [1]}, {"offset": 0, "dtype": "<f8", "shape": [2**62, 0, 2**62]},
    {"offset": 1.5, "dtype": "<f8", "shape": [1]}, {"offset": 0, "dtype": "<f8"}, "samples",
])  # fmt: skip
def test_a_place_outside_the_file_is_refused(tmp_path: Path, place: Any) -> None:
    folder = RunFolder.create(tmp_path / "run", "allreduce", {})
    row = replace(folder.append(make_row(), {"max_s": np.ones(4)}), samples={"max_s": place})
    with pytest.raises(UsageError, match="max_s"):
        read_run(folder.path).array(row, "max_s")


def test_a_run_without_run_json_or_with_pipes_and_devices_gives_its_rows_and_what_is_no_run_is_refused(tmp_path: Path) -> None:
    path = store(tmp_path / "run", [make_row()])
    (path / "run.json").unlink()
    run = read_run(path)
    assert (len(run.rows), run.info) == (1, {})
    assert [warning.partition(": ")[0] for warning in run.warnings] == [f"{path}/run.json is not JSON (JSONDecodeError)"]
    (path / "events.jsonl").unlink()
    os.mkfifo(path / "events.jsonl")
    (path / "run.json").symlink_to("/dev/zero")
    assert len(read_run(path).rows) == 1
    (tmp_path / "file").write_text("x")
    for path in (tmp_path, tmp_path / "missing", tmp_path / "file"):
        with pytest.raises(UsageError, match="is not a run folder"):
            read_run(path)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@FUZZ
@given(run=st.binary(max_size=200), cases=st.binary(max_size=200), events=st.binary(max_size=100))
def test_arbitrary_bytes_never_raise_anything_else(tmp_path: Path, run: bytes, cases: bytes, events: bytes) -> None:
    for name, data in (("run.json", run), ("cells.jsonl", cases), ("events.jsonl", events)):
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
    assert run.warnings[0].startswith(f"{path}/cells.jsonl: 1 line ")


def with_lines(tmp_path: Path, before: bytes) -> tuple[Path, bytes]:
    """Return a run of one row after these lines, and the row."""
    path = store(tmp_path / "run", [make_row()])
    row = (path / "cells.jsonl").read_bytes()
    (path / "cells.jsonl").write_bytes(before + row)
    return path, row


@pytest.mark.parametrize("line", [b"\n", b"x\n", b'{"a": 1}\n'])
def test_lines_that_report_nothing_end_the_reading(line: bytes, tmp_path: Path) -> None:
    path, _ = with_lines(tmp_path, line * 10_000)
    run = read_run(path)
    assert (run.rows, len(run.warnings)) == ([], 2)
    assert run.warnings[0].startswith(f"{path}/cells.jsonl: what follows line 10000 is left out")
    assert run.warnings[1].startswith(f"{path}/cells.jsonl: 10000 lines ")


@pytest.mark.parametrize(("limit", "value"), [("_LARGEST_LINES", 3000), ("_MOST_VALUES", 300)])
def test_a_file_larger_than_any_runs_is_read_to_the_limit(limit: str, value: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"collbench.results.reader.{limit}", value)
    path = store(tmp_path / "run", [make_row(8 << step) for step in range(20)])
    run = read_run(path)
    whole = (path / "cells.jsonl").read_bytes().splitlines(keepends=True)
    kept_bytes = sum(map(len, whole[: len(run.rows)]))
    assert 1 <= len(run.rows) < 20
    (warning,) = run.warnings
    assert warning.startswith(f"{path}/cells.jsonl ") and warning.endswith(f"what follows byte {kept_bytes} is left out")


def test_a_sparse_file_is_read_to_the_limit(tmp_path: Path) -> None:
    path, row = with_lines(tmp_path, b"")
    os.truncate(path / "cells.jsonl", 1 << 42)
    os.truncate(path / "events.jsonl", 1 << 42)
    os.truncate(path / "run.json", 1 << 42)
    run = read_run(path)
    assert len(run.rows) == 1
    about, cases, events = run.warnings
    assert about.startswith(f"{path}/run.json is larger than 64 MiB")
    assert cases.startswith(f"{path}/cells.jsonl ") and f" byte {len(row)} " in cases
    assert events.startswith(f"{path}/events.jsonl ") and " byte 0 " in events


@pytest.mark.parametrize(("bomb", "why"), [
    (b'{"a":[' + b"[]," * (1 << 22) + b"1]}", "more than 4,194,304 values"),
    (b'{"a":' + b"[" * 65 + b"]" * 65 + b"}", "more than 64 levels deep"), (b'{"a":' * 300 + b"1" + b"}" * 300, "more than 64 levels deep"),
], ids=range(3))  # fmt: skip
def test_an_object_that_is_no_measurements_is_left_out(bomb: bytes, why: str, tmp_path: Path) -> None:
    path, _ = with_lines(tmp_path, bomb + b"\n")
    run = read_run(path)
    (warning,) = run.warnings
    assert len(run.rows) == 1 and warning.startswith(f"{path}/cells.jsonl: 1 line ") and warning.endswith(f"line 1: {why}")


def test_brackets_in_a_text_are_no_depth_and_what_json_cannot_hold_becomes_what_it_can() -> None:
    assert parse_object(json.dumps({"a": "[" * 1000, "b": [[]] * 100}).encode()) == {"a": "[" * 1000, "b": [[]] * 100}
    strange = {"a": float("nan"), "b": [float("inf"), 1.5, np.float64(2.5), np.int64(3)], 4: {"c": -float("inf")}, "d": {5}, "e": Path("x")}
    assert plain(strange) == {"a": None, "b": [None, 1.5, 2.5, 3], "4": {"c": None}, "d": [5], "e": "x"}
    assert json.loads(to_line(strange)) == plain(strange)


def test_a_row_that_claims_a_trillion_values_takes_no_memory(tmp_path: Path) -> None:
    path, row = with_lines(tmp_path, b"")
    os.truncate(path / "samples.bin", 1 << 43)
    values = json.loads(row) | {"samples": {"max_s": {"offset": 0, "dtype": "<f8", "shape": [10**12]}}}
    with pytest.raises(UsageError, match=r"array 'max_s' in .*8000000000000 bytes"):
        read_run(path).array(row_from_json(values), "max_s")


def _read_and_report(path: Path) -> None:
    """Reads and prints in every format; nothing printed can steer a terminal."""
    try:
        run = read_run(path)
    except UsageError:
        return
    for row in run.rows:
        for name in row.samples:
            with suppress(UsageError):
                run.array(row, name)
    for format in FORMATS:
        out, err = io.StringIO(), io.StringIO()
        report_run([path], None, format, out, err=err)
        text = (out.getvalue().replace("\r\n", "\n") if format == "csv" else out.getvalue()) + err.getvalue()
        assert all(letter.isprintable() or letter == "\n" for letter in text)


ODD_NUMBERS = [2**63, 2**63 - 1, -(2**63), 10**18, 1e100, 9.99e99, -1e100, 1e-300, 123456789012345678.5, 0.00012345678901234567]
NUMBERS = st.one_of(st.integers(-(10**25), 10**25), st.floats(), st.sampled_from(ODD_NUMBERS))


@given(st.dictionaries(st.text(max_size=6), st.one_of(NUMBERS, st.lists(NUMBERS, max_size=3), st.text(max_size=20)), max_size=5))
@settings(max_examples=60, deadline=None)
def test_the_fast_way_gives_what_the_careful_way_gives(values: dict[str, Any]) -> None:
    fast, careful = list[str](), list[str]()
    found = parse_object(json.dumps(values).encode(), fast)
    assert parse_object(json.dumps({**values, "Infinity": 0}).encode(), careful) == {**found, "Infinity": 0}
    assert fast == careful


@pytest.mark.parametrize(
    "text", ["1e100", "1E100", "1e+0100", "-1e999", "9223372036854775808", "-9223372036854775808", "1" * 101 + ".5", "NaN", "-Infinity"]
)
def test_what_no_measurement_gives_is_unknown(text: str) -> None:
    unknown: list[str] = []
    assert parse_object(f'{{"x":{text}}}'.encode(), unknown) == {"x": None}
    assert unknown == [text]


@pytest.mark.parametrize("open_, close", ["[]", ('{"x":', "}")])
def test_a_file_may_be_so_deep_and_no_deeper(open_: str, close: str) -> None:
    def nested(depth: int) -> bytes:
        return b'{"x":' + open_.encode() * depth + b"1" + close.encode() * depth + b"}"

    assert parse_object(nested(63))
    with pytest.raises(ValueError, match="levels deep"):
        parse_object(nested(65))
