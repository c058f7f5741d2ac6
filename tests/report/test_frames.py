"""Frames as text of any width, CSV and JSON lines."""

import csv
import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.report.frame import Column, Frame, csv_lines, json_lines, markdown_lines, table_lines

RECORDS = [("allreduce", 8, "one loopback TCP stream each way"), ("broadcast", 1 << 20, "memory copy")]


def frame(**changes: object) -> Frame[tuple[str, int, str]]:
    columns = (
        Column[tuple[str, int, str]]("operation", "operation", lambda each: each[0]),
        Column[tuple[str, int, str]]("size_bytes", "size", lambda each: f"{each[1]} B", lambda each: each[1], right=True, drop=2),
        Column[tuple[str, int, str]]("limited_by", "limited by", lambda each: each[2], drop=1, cut=True),
    )
    return Frame(**{"columns": columns, "records": RECORDS, **changes})  # type: ignore[arg-type]


def text(width: int | None, **changes: object) -> list[str]:
    return [line.text for line in table_lines(frame(**changes), width)]


def test_a_file_gets_every_column_and_a_narrow_terminal_drops_cuts_or_names_them() -> None:
    # a file gets every column in full
    assert text(None) == [
        "operation       size  limited by",
        "allreduce        8 B  one loopback TCP stream each way",
        "broadcast  1048576 B  memory copy",
    ]
    # a narrow terminal drops columns in their order
    assert text(45)[1] == "allreduce  one loopback TCP stream each way"
    assert text(20)[1] == "allreduce"
    # a column without a drop is cut where it may be
    column = Column[tuple[str, int, str]]("limited_by", "limited by", lambda each: each[2], cut=True)
    assert text(20, columns=(frame().columns[0], column))[1:] == ["allreduce  one loop…", "broadcast  memory c…"]
    # a reason stands in place of the figures
    assert text(None, instead=lambda each: "n/a (no GPU)" if each[0] == "broadcast" else None)[-1] == "broadcast  n/a (no GPU)"
    # a terminal without room names the hidden columns
    assert text(45, names_hidden=True)[-1] == "not shown on a terminal this narrow: size"
    assert text(60, names_hidden=True) == text(None)
    # a table without titles has no heading
    column = Column[tuple[str, int, str]]("", "", lambda each: each[0])
    assert text(None, columns=(column,)) == ["allreduce", "broadcast"]
    # sentences are wrapped between words
    lines = text(40, foot=["intervals are 95 % confidence intervals of the median within one launch"])
    assert lines[-2:] == ["intervals are 95 % confidence intervals", "  of the median within one launch"]


def test_the_text_of_a_last_column_may_be_wrapped_below_its_beginning() -> None:
    wrapped = Column[tuple[str, int, str]]("limited_by", "limited by", lambda each: each[2], wrap=True)
    columns = (frame().columns[0], wrapped)
    long = [("allreduce", 8, "one loopback TCP stream each way, as measured here")]
    assert text(45, columns=columns, records=long)[1:] == ["allreduce  one loopback TCP stream each way,", "           as measured here"]
    assert text(28, columns=columns, records=long)[1:] == [
        "allreduce", "    one loopback TCP stream", "    each way, as measured", "    here",
    ]  # fmt: skip
    assert text(None, columns=columns, records=long)[1:] == [f"allreduce  {long[0][2]}"]


def test_markdown_has_every_column_and_the_foot_as_a_list() -> None:
    lines = [line.text for line in markdown_lines(frame(title="cpu", foot=["medians of one launch"]))]
    assert lines[:5] == [
        "cpu", "", "| operation | size | limited by |", "|---|---:|---|", "| allreduce | 8 B | one loopback TCP stream each way |",
    ]  # fmt: skip
    assert lines[-2:] == ["", "- medians of one launch"]


@given(st.integers(12, 200), st.lists(st.tuples(st.text(max_size=30), st.integers(0, 1 << 40), st.text(max_size=90)), max_size=5))
def test_no_line_is_wider_than_the_terminal(width: int, records: list[tuple[str, int, str]]) -> None:
    wrapped = Column[tuple[str, int, str]]("limited_by", "limited by", lambda each: each[2], wrap=True)
    for columns in (frame().columns, (*frame().columns[:2], wrapped)):
        foot = ["a foot of several words, and some more of them"]
        lines = text(width, columns=columns, records=records, title="cpu · isolated · in place", foot=foot, names_hidden=True)
        assert all(len(line) <= width and line.isprintable() for line in lines)


def test_programs_get_keys_and_values() -> None:
    rows = list(csv.reader(io.StringIO("".join(f"{line.text}\n" for line in csv_lines(frame())))))
    assert rows == [["operation", "size_bytes", "limited_by"], ["allreduce", "8", RECORDS[0][2]], ["broadcast", "1048576", RECORDS[1][2]]]
    assert [json.loads(line.text)["size_bytes"] for line in json_lines(frame())] == [8, 1 << 20]


@pytest.mark.parametrize(("value", "shown"), [(None, ""), (True, "true"), (0.1, "0.1"), ({"a": 1}, '{"a":1}'), ("=1+1", "'=1+1")])
def test_a_value_of_csv(value: object, shown: str) -> None:
    column = Column[tuple[str, int, str]]("value", "value", lambda each: "", lambda each: value)
    rows = list(csv.reader([line.text for line in csv_lines(frame(columns=(column,), records=RECORDS[:1]))]))
    assert rows == [["value"], [shown] if shown else [""]]
