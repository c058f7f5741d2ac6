"""The formats of rows (`--format`): a name and a class of `RowWriter`, which is imported when it is used."""

from __future__ import annotations

FORMATS = {
    "table": "collbench.report.writers:TableWriter",
    "nccl-tests": "collbench.report.nccl_tests:NcclTestsWriter",
    "csv": "collbench.report.writers:CsvWriter",
    "json": "collbench.report.writers:JsonWriter",
    "bmf": "collbench.report.bencher:BencherWriter",
}
