"""Golden texts: compared byte for byte; written anew with COLLBENCH_GOLDEN=1."""

import io
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from collbench.report.plan import PlanSummary
from collbench.report.progress import Reporter
from collbench.report.runs import report_run
from collbench.results.row import Row

FOLDER = Path(__file__).parent.parent / "golden" / "report"


def assert_golden(name: str, text: str) -> None:
    """The text is the one stored under `name`."""
    path = FOLDER / name
    if os.environ.get("COLLBENCH_GOLDEN") == "1":
        path.write_bytes(text.encode())
    assert text == path.read_bytes().decode()


def report_of(*paths: Path, file: Path | None = None, format: str = "table", **options: Any) -> tuple[str, str]:
    """What `collbench report` prints on stdout and stderr."""
    out, err = io.StringIO(), io.StringIO()
    assert report_run(paths, file, format, out, err=err, **options) == 0
    return out.getvalue(), err.getvalue()


def live(rows: Sequence[Row], format: str = "table", places: Iterable[Mapping[str, Any]] = (), run: str = "", **planned: Any) -> str:
    """What a run with these rows, in this order, prints on stdout."""
    out = io.StringIO()
    with Reporter(format, out, io.StringIO()) as reporter:
        reporter.start(replace(PlanSummary.of(rows, places, run), **planned))
        for row in rows:
            reporter.row(row)
    return out.getvalue()
