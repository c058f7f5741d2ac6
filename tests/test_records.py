"""Declared records: columns from annotations, and the outputs that follow from them."""

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest

from collbench.columns import (
    COUNT,
    FLAGS,
    FLOAT,
    PERCENT,
    RATE,
    RATIO,
    SECONDS,
    TEXT,
    ValueColumn,
    column,
    figure,
    joined,
    unit_of,
    value_columns,
)
from collbench.plugin import RecordFile
from collbench.reason import Text, as_json
from collbench.records import Record, RecordKind, document, flat_document, stored, stored_field
from collbench.report.forms import FORMATS, frame_of, with_columns, write
from collbench.report.writers import Metric, column_samples
from collbench.report.writers import Sample as OpenMetricsSample
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
    @figure("The moved bytes of the left side.", after="by_side", in_json=False)
    def left_again_bytes(self) -> int | None:
        """The moved bytes of the left side, which the nested record has."""
        return self.by_side["left"].moved_bytes if self.by_side else None

    @property
    @figure("The blocks per time.", after="name", optional=True)
    def blocks_ratio(self) -> float | None:
        """A figure that an object lacks without a value."""
        return self.blocks / 7 if self.blocks else None

    @property
    @figure("The blocks per second.", after="time_s", title="blocks/s", unit=COUNT)
    def blocks_per_s(self) -> float | None:
        """The blocks per second."""
        return self.blocks / self.time_s.value if self.time_s.value else None


class Plain(msgspec.Struct):
    """A value of this test that is not a record."""

    count: int = 3


class Renamed(Record, frozen=True, kw_only=True, rename={"count": "n"}):
    """A record of this test with another name in files."""

    count: int = 3


KIND = RecordKind("sample", Sample, lambda records: f"{len(records)} samples", lambda records: ["a remark"])
ONE = Sample(name="a", time_s=Estimate(2e-6, 1e-6, 3e-6), blocks=4, outcome="good", by_side={"left": Side(8)}, flags=("drift",))


def printed(format: str, *records: Sample, quiet: bool = False) -> str:
    out = io.StringIO()
    write(KIND, records, format, out, color=False, run="r", quiet=quiet)
    return out.getvalue()


def test_columns_follow_from_the_fields_their_parts_and_the_figures() -> None:
    names = [value.name for value in KIND.values]
    assert names == ["name", "blocks_ratio", "time_s", "time_low_s", "time_high_s", "blocks_per_s", "blocks", "outcome",
                     "left_moved_bytes", "right_moved_bytes", "left_again_bytes", "flags"]  # fmt: skip
    kinds = {value.name: (value.type, value.unit.name) for value in KIND.values}
    assert kinds["time_low_s"] == (float, "seconds") and kinds["left_moved_bytes"] == (int, "bytes") and kinds["outcome"] == (str, "")
    (about,) = [value.about for value in KIND.values if value.name == "right_moved_bytes"]
    assert about == "The bytes of the right side."


def test_values_of_a_record_are_those_of_its_fields_and_parts() -> None:
    assert KIND.fields_of(ONE) == {
        "name": "a", "blocks_ratio": 4 / 7, "time_s": 2e-6, "time_low_s": 1e-6, "time_high_s": 3e-6, "blocks_per_s": 2e6, "blocks": 4,
        "outcome": "good", "left_moved_bytes": 8, "right_moved_bytes": None, "left_again_bytes": 8, "flags": ("drift",),
    }  # fmt: skip


def test_a_value_is_stored_with_its_nested_records_as_objects() -> None:
    side = {"moved_bytes": 8, "note": "not a column"}
    assert (
        stored([Side(8), (Side(8), 3)]) == [side, [side, 3]]
        and stored({"a": Side(8)}) == {"a": side}
        and stored((Renamed(), Plain())) == [{"n": 3}, {"count": 3}]
    )
    assert stored(Estimate(2e-6, 1e-6, 3e-6)) == {"value": 2e-6, "low": 1e-6, "high": 3e-6}
    assert stored(ONE) == ONE.as_json() and stored(Text("a")) == as_json(Text("a"))
    whole = Whole(Side(8), None, None, ())
    assert (stored_field("side")(whole), stored_field("inside")(whole)) == (side, {})


def test_records_of_a_folder_are_read_up_to_the_last_complete_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collbench.records.record_files", lambda: {"sample": RecordFile("samples.jsonl", "sample")})
    assert KIND.read(tmp_path) == ([], [])
    line = json.dumps(ONE.as_json())
    (tmp_path / "samples.jsonl").write_text(f'{line}\n{{"name": 3}}\n{line}\n{line[:9]}')
    records, warnings = KIND.read(tmp_path)
    assert records == [ONE, ONE] and len(warnings) == 2


def test_a_field_of_csv_has_the_names_of_flags() -> None:
    assert KIND.fields_of(ONE.replace(flags=("no_interval",)))["flags"] == ("no interval",)


def test_a_copy_has_other_values() -> None:
    assert ONE.replace(name="b", blocks=5) == KIND.decoded({**ONE.as_json(), "name": "b", "blocks": 5}) != ONE


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


def test_lines_of_json_have_the_figures_that_no_nested_record_has() -> None:
    first, second = (json.loads(printed("json", record)) for record in (ONE, Sample(name="b")))
    assert {name: first[name] for name in first if name not in ONE.as_json()} == {"blocks_per_s": 2e6, "blocks_ratio": 4 / 7}
    assert {name: second[name] for name in second if name not in ONE.as_json()} == {"blocks_per_s": None}


def test_a_table_can_have_any_declared_column() -> None:
    chosen, added = (frame_of(with_columns(KIND, ("blocks_ratio", "time_low_s"), added), [ONE]) for added in (False, True))
    assert [(shown.title, shown.text(ONE)) for shown in chosen.columns] == [("blocks_ratio", "0.571"), ("time_low µs", "1.000")]
    assert [shown.title for shown in added.columns[-3:]] == ["flags", "blocks_ratio", "time_low µs"]
    assert with_columns(KIND, (), added=False) is KIND


def test_csv_has_its_header_once() -> None:
    assert printed("csv", ONE, ONE.replace(name="b")).count("run,name") == 1
    assert printed("csv") == ""


@dataclass(frozen=True)
class Whole:
    """A value of this test with everything that a document may have."""

    side: Annotated[Side | None, column("A side.", key="first")]
    inside: Annotated[
        Side | None, column("", key="", parts={"moved_bytes": column("The bytes."), "twice": column("", value=lambda whole: 2)})
    ]
    parts: Annotated[Side | None, column("A side.", parts={"moved_bytes": column("The bytes.", key="bytes")})]
    names: Annotated[
        tuple[str, ...],
        column("How many names.", value=lambda whole: number_of(whole.names)),
        column("The names.", key="all", after="factor"),
    ]
    time_s: Annotated[float | None, column("The time.", optional=True)] = None
    factor: Annotated[float | None, column("The factor.", optional=True)] = None
    note: str = "not a column"

    @property
    @figure("The sum.")
    def total(self) -> int:
        """The sum."""
        return 7


def number_of(names: tuple[str, ...]) -> int:
    return len(names)


def test_a_document_has_the_declared_columns_and_figures_in_their_order() -> None:
    whole = document(Whole(Side(8), Side(9), Side(10), ("a", "b"), factor=1.5))
    assert whole == {
        "total": 7, "first": {"moved_bytes": 8}, "moved_bytes": 9, "twice": 2, "parts": {"bytes": 10}, "names": 2, "factor": 1.5,
        "all": ("a", "b"),
    }  # fmt: skip
    assert list(whole) == ["total", "first", "moved_bytes", "twice", "parts", "names", "factor", "all"]


def test_a_missing_record_is_none_and_its_keys_remain_where_they_are_those_of_the_document() -> None:
    missing = document(Whole(None, None, None, (), time_s=2.0))
    assert missing == {"total": 7, "first": None, "moved_bytes": None, "twice": 2, "parts": None, "names": 0, "all": (), "time_s": 2.0}


def test_a_flat_document_has_the_names_of_nested_fields_behind_those_of_their_objects() -> None:
    flat = flat_document(Whole(Side(8), None, Side(10), ()))
    assert flat == {"total": 7, "first_moved_bytes": 8, "moved_bytes": None, "twice": 2, "parts_bytes": 10, "names": 0, "all": ()}


def test_a_nested_class_of_a_subclass_has_the_figures_of_its_base() -> None:
    @dataclass(frozen=True)
    class More(Whole):
        """A subclass."""

    assert document(More(None, None, None, ()))["total"] == 7


@dataclass(frozen=True)
class Measured:
    """A value with columns of several units."""

    time_s: Annotated[float | None, column("The time.")]
    percent: Annotated[tuple[float | None, ...], column("Share of the link.")]
    count: Annotated[int, column("How many.", unit=COUNT)] = 3


def test_a_metric_takes_name_unit_and_help_of_its_column() -> None:
    metrics = {
        "time": Metric.of(Measured, "time_s", "; no sample without one"),
        "share": Metric.of(Measured, "percent"),
        "number": Metric.of(Measured, "count"),
        "other": Metric("", "no column"),
    }
    assert [(metric.unit, metric.means) for metric in metrics.values()] == [
        ("seconds", "the time; no sample without one"), ("ratio", "share of the link"), ("", "how many"), ("", "no column"),
    ]  # fmt: skip
    samples = list(column_samples(metrics, Measured(2e-6, (50.0, None)), {"a": "b"}))
    assert samples == [
        OpenMetricsSample("time", {"a": "b"}, 2e-6),
        OpenMetricsSample("share", {"a": "b", "strike": "1"}, 0.5),
        OpenMetricsSample("share", {"a": "b", "strike": "2"}, None),
        OpenMetricsSample("number", {"a": "b"}, 3),
    ]
    assert list(column_samples(metrics, ONE, {})) == []


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
    ("name", "unit"),
    [
        ("time_p50_s", SECONDS), ("busbw_bytes_per_s", RATE), ("percent_of_ceiling", PERCENT), ("operation", TEXT),
        ("tail_ratio", RATIO), ("ratio", RATIO),
    ],
)  # fmt: skip
def test_the_unit_follows_from_the_end_of_a_name(name: str, unit: object) -> None:
    assert unit_of(name) is unit
    assert unit_of(name, float) is (FLOAT if unit is TEXT else unit)


def test_a_column_has_a_short_text_for_each_value() -> None:
    texts = {value: ValueColumn("a", "", unit, float, lambda record, value=value: value).text(None) for value, unit in (
        (6.857142857142858, FLOAT), (0.000123456, FLOAT), (12345.678, FLOAT), (1.2e20, FLOAT), (6.857142857142858e-6, SECONDS),
        (True, TEXT), (None, RATE), ((1e9, 2e9), RATE), ("odd", SECONDS),
    )}  # fmt: skip
    assert list(texts.values()) == ["6.857", "0.0001235", "12346", "1.2e+20", "6.857", "yes", "–", "1.00, 2.00", "odd"]


def test_each_column_of_rows_is_declared_with_a_sentence() -> None:
    columns = value_columns(Row)
    assert len({value.name for value in columns}) == len(columns) > 80
    assert [value.name for value in columns if not value.about.endswith(".")] == []
