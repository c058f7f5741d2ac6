"""The table, CSV and JSON of block transfers."""

import csv
import json
from io import StringIO

import pytest

from collbench.plugins.kv.records import KvRow
from collbench.plugins.kv.text import BLOCK_TRANSFERS, remarks
from collbench.report.forms import FORMATS, write
from collbench.results.estimate import Estimate

ROW = KvRow(
    method="mpi-type", backend="mpi", pattern="prefill-decode", layout="plain", sources=1, targets=1, blocks=64, block_bytes=4096,
    busiest=64, size_bytes=262144, nodes=2, n=60, time_s=Estimate(5e-5, 4e-5, 6e-5),
    expected_s=2.5e-5, limited_by="eth0 on n1 (sysfs)", prefill_s=1.5e-4, checked=1, wrong=0,
)  # fmt: skip


def written(format: str, *rows: KvRow) -> str:
    out = StringIO()
    write(BLOCK_TRANSFERS, rows, format, out, color=False, run="r")
    return out.getvalue()


def test_figures_follow_from_the_time_in_csv_and_json() -> None:
    (line,) = csv.DictReader(StringIO(written("csv", ROW)))
    assert float(line["bytes_per_s"]) == pytest.approx(262144 / 5e-5) and float(line["s_per_block"]) == pytest.approx(5e-5 / 64)
    assert float(line["percent_of_link"]) == pytest.approx(50) and float(line["first_token_percent"]) == pytest.approx(25)
    assert BLOCK_TRANSFERS.decoded(json.loads(written("json", ROW))) == ROW
    row = ROW.replace(time_s=Estimate(1e-3), expected_s=5e-4)
    shown, kept = json.loads(written("json", row)), row.as_json()
    assert {name for name in shown if name not in kept} == {"bytes_per_s", "s_per_block", "percent_of_link", "first_token_percent"}
    assert shown["percent_of_link"] == 50 and shown["bytes_per_s"] == row.size_bytes * 1000


@pytest.mark.parametrize("format", FORMATS)
def test_rows_without_figures_are_printed(format: str) -> None:
    row = ROW.replace(na="socket is missing", time_s=Estimate(), n=0, wrong=None, expected_s=None)
    assert "socket is missing" in written(format, ROW, row)


def test_remarks_on_costs_and_wrong_data() -> None:
    rows = [ROW.replace(method=method, blocks=blocks, busiest=blocks) for method in ("packed", "writev") for blocks in (8, 64)]
    assert sum("packed, writev" in text for text in remarks(rows)) == 1
    assert "mpi-type: rank 1: 1 wrong element" in remarks([ROW.replace(wrong=1, wrong_detail="rank 1: 1 wrong element")])
