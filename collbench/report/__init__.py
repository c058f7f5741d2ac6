"""Output for users: results, verdicts, machines and plans as text, CSV, JSON and other formats."""

from __future__ import annotations

# The formats of rows (`--format`): by name a class of `RowWriter`, which is imported when it is used.
FORMATS = {
    "table": "collbench.report.writers:TableWriter",
    "nccl-tests": "collbench.report.nccl_tests:NcclTestsWriter",
    "csv": "collbench.report.writers:CsvWriter",
    "bmf": "collbench.report.bencher:BencherWriter",
    "json": "collbench.report.writers:JsonWriter",
}
