"""Declared records: columns from annotations, and the outputs that follow from them."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
import pytest

from collbench.columns import COUNT, FLAGS, PERCENT, RATE, SECONDS, TEXT, column, figure, joined, unit_of, value_columns
from collbench.records import Record, RecordKind
from collbench.report.forms import FORMATS, frame_of, write
from collbench.results.estimate import Estimate
from collbench.results.row import Row


@dataclass(frozen=True)
class Side:
    """A nested record of this test."""

    moved_bytes: Annotated[int, column("The bytes of {}")] = 0
    note: str = "not a column"


SIDES = {"left": column("the left side."), "right": column("the right side.")}


class Sample(Record, frozen=True, kw_only=True):
    """A record of this test."""

    name: Annotated[str, column("What was measured.", title="name")]
    outcome: Annotated[Literal["good", "bad"] | None, column("The outcome.", after="blocks")] = None
    time_s: Annotated[Estimate, column("The time.", title="time µs", interval="interval µs", drop_interval=2)] = Estimate()
    blocks: Annotated[int, column("The blocks.", unit=COUNT, title="blocks")] = 0
    by_side: Annotated[dict[str, Side], column("", key="", parts=SIDES)] = msgspec.field(default_factory=dict)
    flags: Annotated[tuple[str, ...], column("The flags.", unit=FLAGS, title="flags")] = ()
    na: str | None = None

    @property
    @figure("The blocks per second.", after="time_s", title="blocks/s", unit=COUNT)
    def blocks_per_s(self) -> float | None:
        """The blocks per second."""
        return self.blocks / self.time_s.value if self.time_s.value else None


KIND = RecordKind("sample", Sample, lambda records: f"{len(records)} samples", lambda records: ["a remark"])
ONE = Sample(name="a", time_s=Estimate(2e-6, 1e-6, 3e-6), blocks=4, outcome="good", by_side={"left": Side(8)}, flags=("drift",))


def printed(format: str, *records: Sample, quiet: bool = False) -> str:
    out = io.StringIO()
    write(KIND, records, format, out, color=False, run="r", quiet=quiet)
    return out.getvalue()


def test_columns_follow_from_the_fields_their_parts_and_the_figures() -> None:
    names = [value.name for value in KIND.values]
    assert names == ["name", "time_s", "time_low_s", "time_high_s", "blocks_per_s", "blocks", "outcome",
                     "left_moved_bytes", "right_moved_bytes", "flags"]  # fmt: skip
    kinds = {value.name: (value.type, value.unit.name) for value in KIND.values}
    assert kinds["time_low_s"] == (float, "seconds") and kinds["left_moved_bytes"] == (int, "bytes") and kinds["outcome"] == (str, "")
    (about,) = [value.about for value in KIND.values if value.name == "right_moved_bytes"]
    assert about == "The bytes of the right side."


def test_values_of_a_record_are_those_of_its_fields_and_parts() -> None:
    assert KIND.fields_of(ONE) == {
        "name": "a", "time_s": 2e-6, "time_low_s": 1e-6, "time_high_s": 3e-6, "blocks_per_s": 2e6, "blocks": 4, "outcome": "good",
        "left_moved_bytes": 8, "right_moved_bytes": None, "flags": ("drift",),
    }  # fmt: skip


def test_a_stored_record_is_read_again() -> None:
    values: dict[str, Any] = ONE.as_json()
    assert values["by_side"] == {"left": {"moved_bytes": 8, "note": "not a column"}} and "blocks_per_s" not in values
    assert KIND.decoded(values | {"of a later version": 1}) == ONE
    with pytest.raises(ValueError, match="outcome"):
        KIND.decoded(values | {"outcome": "perhaps"})


def test_a_table_has_the_titled_columns_that_are_not_empty() -> None:
    assert [shown.title for shown in frame_of(KIND, [ONE]).columns] == ["name", "time µs", "interval µs", "blocks/s", "blocks", "flags"]
    assert [shown.title for shown in frame_of(KIND, [Sample(name="b")]).columns] == ["name", "blocks"]


@pytest.mark.parametrize("format", FORMATS)
def test_each_form_has_the_record(format: str) -> None:
    text = printed(format, ONE)
    assert "a" in text and ("drift" in text)
    assert ("a remark" in text) == (format == "table") and "a remark" not in printed(format, ONE, quiet=True)


def test_csv_has_its_header_once() -> None:
    assert printed("csv", ONE, ONE.replace(name="b")).count("run,name") == 1
    assert printed("csv") == ""


@pytest.mark.parametrize(
    ("names", "whole"),
    [
        (("time_s", ""), "time_s"),
        (("time_s", "low"), "time_low_s"),
        (("", "p50", "off_s", "low"), "p50_off_low_s"),
        (("ceiling", "low_bytes_per_s"), "ceiling_low_bytes_per_s"),
        (("bytes_per_s",), "bytes_per_s"),
        (("groups", "count"), "groups_count"),
    ],
)
def test_names_of_parts_end_with_the_unit(names: tuple[str, ...], whole: str) -> None:
    assert joined(names) == whole


@pytest.mark.parametrize(
    ("name", "unit"), [("time_p50_s", SECONDS), ("busbw_bytes_per_s", RATE), ("percent_of_ceiling", PERCENT), ("operation", TEXT)]
)
def test_the_unit_follows_from_the_end_of_a_name(name: str, unit: object) -> None:
    assert unit_of(name) is unit


def test_each_column_of_rows_is_declared_with_a_sentence() -> None:
    columns = value_columns(Row)
    assert len({value.name for value in columns}) == len(columns) > 80
    assert [value.name for value in columns if not value.about.endswith(".")] == []
