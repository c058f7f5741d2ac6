"""Every output of a verdict, by file and by style."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from collbench.errors import UsageError
from collbench.gate.verdict import NAGIOS, Verdict
from collbench.report.outputs import STDOUT, write_whole
from collbench.report.table import Line
from collbench.results.store import to_page

_NEEDS = {"junit": ("junitparser",), "openmetrics": ("prometheus_client",), "html": ("matplotlib", "jinja2")}
_SUMMARY = "GITHUB_STEP_SUMMARY"  # what earlier commands of the step wrote there stays, as GitHub expects


@dataclass(frozen=True)
class Files:
    """The files asked for; None: not asked for."""

    out: Path | None = None
    junit: Path | None = None
    markdown: Path | None = None
    openmetrics: Path | None = None
    html: Path | None = None

    def check(self) -> None:
        """Raises UsageError for what could not be written after a long judgement: what goes to stdout, or needs a missing package."""
        for name, path in vars(self).items():
            if path == STDOUT:
                raise UsageError(f"--{name} does not go to stdout: name a FILE")
            missing = [needed for needed in _NEEDS.get(name, ()) if path is not None and find_spec(needed) is None]
            if missing:
                raise UsageError(f"--{name} needs {' and '.join(missing)}: pip install 'collbench[report]'")


def write_files(verdict: Verdict, files: Files, runs: Sequence[Path]) -> None:
    """Writes what was asked for, each in one step; verdict.json first. `runs` are the candidate's, for the page. Raises UsageError."""
    if files.out:
        write_whole(files.out, to_page(verdict.as_json()), "--out")
    if files.junit:
        from collbench.report.junit import junit

        write_whole(files.junit, junit(verdict), "--junit")
    if files.markdown:
        _write_markdown(files.markdown, verdict)
    if files.openmetrics:
        from collbench.report.metrics import openmetrics

        write_whole(files.openmetrics, openmetrics(verdict), "--openmetrics")
    if files.html:
        from collbench.report.html.material import Material
        from collbench.report.html.page import write_html
        from collbench.report.readable import readable

        found = readable(runs)
        write_html(Material(found.runs, files.html, found.warnings, verdict))


def lines(verdict: Verdict, format: str, style: str) -> Iterator[Line]:
    """What is printed: for a monitor one line of status, else the verdict in `format`: table, json or github."""
    if style == NAGIOS:
        from collbench.report import status

        yield from status.lines(verdict)
    elif format == "github":
        from collbench.report import annotations

        yield from annotations.lines(verdict)
    else:
        from collbench.report import verdict_terminal as terminal

        yield from [terminal.json_line(verdict)] if format == "json" else terminal.lines(verdict)


def is_summary(path: Path) -> bool:
    """Whether it is the one that GitHub gathers for the step."""
    summary = os.environ.get(_SUMMARY)
    return bool(summary) and Path(summary or "").resolve() == path.resolve()


def _write_markdown(path: Path, verdict: Verdict) -> None:
    from collbench.report.verdict_markdown import LARGEST, markdown

    if not is_summary(path):
        write_whole(path, markdown(verdict), "--markdown")
        return
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(markdown(verdict, LARGEST - file.tell()))
    except OSError as error:
        raise UsageError(f"--markdown {path} cannot be written ({error.strerror or error}): choose another file") from error
