"""What --dry-run prints of a step: neighbours that differ only in a number are one line, bytes by hand, and records for programs."""

from __future__ import annotations

import csv
import io
import json

import pytest

from collbench.report.training import PlannedStep, folded, span, write_plan
from collbench.workloads.step import Exchange, Regime, Shape, Step

MIB = 1 << 20
SHAPE = Shape("tiny", 1_000_000, "float32", 4, MIB, (0, 0, 1, 1), options={"update": "sharded", "servers": ""})
ALL = ((0, 1, 2, 3),)
EXCHANGES = (
    Exchange("allreduce", ALL, 2 * MIB, "gradients, bucket 1 of 3", redop="sum"),
    Exchange("allreduce", ALL, 2 * MIB, "gradients, bucket 2 of 3", redop="sum"),
    Exchange("allreduce", ALL, MIB, "gradients, bucket 3 of 3", redop="sum"),
    Exchange("sendrecv", ((0, 2), (1, 3)), MIB, "=activations", times=5),
)


def planned(*exchanges: Exchange, note: str = "") -> PlannedStep:
    step = Step(exchanges, 4_000_000, note)
    return PlannedStep(Regime("made-up", "for tests", lambda shape: step), SHAPE, step, "tiny")


def text_of(*those: PlannedStep, format: str = "table") -> str:
    out = io.StringIO()
    write_plan(those, format, out)
    return out.getvalue()


def test_a_line_per_kind_of_exchange_and_the_bytes_below() -> None:
    lines = text_of(planned(*EXCHANGES, note="a note")).splitlines()
    assert lines[0] == "made-up · tiny, 1,000,000 parameters · float32 · update sharded · 4 ranks · 2 nodes"
    assert [line.split("  ")[0] for line in lines[2:5]] == ["gradients, bucket 1–2 of 3", "gradients, bucket 3 of 3", "=activations"]
    assert lines[2].split()[-3:] == ["2", "6", "MiB"], "two of 2 MiB, 2·3/4 times each"
    assert lines[4].split()[-3:] == ["5", "5", "MiB"]
    # 2·3/4·5 MiB and five messages of 1 MiB, of four ranks
    assert lines[5] == "a step: 3.81 MiB of a rank's own data; the busiest rank moves 12.5 MiB, all ranks 50 MiB"
    assert lines[6:] == ["a note", "moves: what the busiest rank has to send or receive, as busbw counts it; an algorithm may move more"]


def test_programs_get_every_exchange_for_itself() -> None:
    rows = [json.loads(line) for line in text_of(planned(*EXCHANGES), planned(EXCHANGES[0]), format="json").splitlines()]
    assert [(row["what"], row["moves_bytes"], row["groups"], row["group_ranks"]) for row in rows[2:5]] == [
        ("gradients, bucket 3 of 3", 1.5 * MIB, 1, 4), ("=activations", 5 * MIB, 2, 2), ("gradients, bucket 1 of 3", 3 * MIB, 1, 4),
    ]  # fmt: skip
    records = list(csv.DictReader(io.StringIO(text_of(planned(*EXCHANGES), format="csv"))))
    assert [(record["what"], record["redop"]) for record in records[2:]] == [("gradients, bucket 3 of 3", "sum"), ("'=activations", "")]


def test_nothing_planned_prints_nothing() -> None:
    assert [text_of(format=format).strip() for format in ("table", "json", "csv")] == ["", "", ""]


def test_only_what_is_alike_is_folded() -> None:
    other = Exchange("allreduce", ALL, 2 * MIB, "something else", redop="sum")
    assert [(each.what, each.times) for each in folded([EXCHANGES[0], other, EXCHANGES[1]])] == [
        ("gradients, bucket 1 of 3", 1), ("something else", 1), ("gradients, bucket 2 of 3", 1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("first", "last", "both"),
    [
        ("bucket 1 of 14", "bucket 13 of 14", "bucket 1–13 of 14"),
        ("bucket 1 of 14", "bucket 1 of 14", "bucket 1 of 14"),
        ("forward", "backward", "forward … backward"),
        ("", "", ""),
    ],
)
def test_two_names_in_one(first: str, last: str, both: str) -> None:
    assert span(first, last) == both
