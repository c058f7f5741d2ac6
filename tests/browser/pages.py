"""Pages for the browser tests: one of each kind, and one with hostile content in every text."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from playwright.sync_api import Page

from collbench.cli.main import run as run_command
from collbench.gating.history import history
from collbench.machine.peak.ceiling import Ceiling
from collbench.machine.snapshot import topology_json
from collbench.report.html import page as page_of
from collbench.report.html.chart import Chart, FileLink, Section, Table, Tooltip
from collbench.report.html.first_screen import BAD, FirstScreen, LargeFigure
from collbench.report.html.history import write_history
from collbench.report.material import Material
from collbench.results.reader import read_run
from tests.conftest import needs_plugin
from tests.gate.histories import upgraded
from tests.gate.verdicts import regression
from tests.machine.machines import dgx
from tests.results.rows import make_row, store

ROOT = Path(__file__).parents[2]
EVIL = "</script><script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">\u202e=cmd|'/c calc'!A1 ${7*7}"


@dataclass
class ObservedPage:
    """An opened page, with its requests, console messages and exceptions."""

    page: Page
    asked: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    @classmethod
    def opening(cls, page: Page, path: Path) -> ObservedPage:
        """Listens first, then opens the file."""
        seen = cls(page)
        page.on("request", lambda request: seen.asked.append(request.url))
        page.on("console", lambda message: seen.said.append(message.text))
        page.on("pageerror", lambda error: seen.said.append(str(error)))
        page.set_default_timeout(20_000)  # what is not there fails, and a busy machine is waited for
        page.goto(path.as_uri())
        return seen


def write_runs(path: Path, *names: str) -> Path:
    """Write the page that `collbench report` makes of committed runs."""
    folders = [ROOT / name for name in names]
    launches = [[folder] if (folder / "run.json").exists() else sorted(folder.glob("launch-*")) for folder in folders]
    page_of.write_html(Material([read_run(each) for found in launches for each in found], path))
    return path


def gpu_page(path: Path) -> Path:
    """Write the page of a run on two nodes with eight GPUs each, limited by NVLinks."""
    limit = Ceiling("topology", 450e9, "NVLink 18×25 GB/s", "ring", "counted")
    rows = [make_row(size_bytes=size, ceiling=limit) for size in (1 << 20, 1 << 26)]
    run = store(path.with_suffix(""), rows, hosts=["node1", "node2"])
    machines = [replace(dgx(), hostname=host) for host in ("node1", "node2")]
    (run / "topology.json").write_text(json.dumps(topology_json(machines)))
    page_of.write_html(Material([read_run(run)], path))
    return path


def gate_page(path: Path) -> Path:
    """Write the page of a gate with a regression."""
    rows = [make_row(size_bytes=size, backend=backend) for backend in ("mpi", "nccl") for size in (1 << 20, 1 << 26)]
    page_of.write_html(Material([read_run(store(path.with_suffix(""), rows))], path, (), regression()))
    return path


def history_page(path: Path) -> Path:
    """Write the page of a history with one change."""
    write_history(history("base", upgraded(12, 6)), "allreduce*MiB mpi", path)
    return path


def autopsy_page(path: Path) -> Path:
    """Write the page that `collbench autopsy` makes of committed dumps."""
    assert run_command(["autopsy", *(str(ROOT / each) for each in GALLERY["AUTOPSIES"]["autopsy"]), "--html", str(path)]) == 1
    return path


# Every kind of page: those of the gallery, and pages of made-up runs.
GALLERY = runpy.run_path(str(ROOT / "tools" / "gallery"))
RUNS: dict[str, list[str]] = GALLERY["PAGES"]
PAGES: dict[str, Callable[[Path], Path]] = {
    **{name: lambda path, runs=runs: write_runs(path, *runs) for name, runs in RUNS.items()},
    "autopsy": autopsy_page, "eight-gpus": gpu_page, "gate": gate_page, "history": history_page,
}  # fmt: skip
CHARTLESS = frozenset(GALLERY["AUTOPSIES"])
OFTEN = ("eight-gpus", "slow-host", "two-hosts")  # the kinds of charts; the other pages take their turn


def page_parameter(name: str, *marks: pytest.MarkDecorator) -> Any:
    """Return the parameter for a page, skipped where the plug-in that makes it is absent."""
    plugin = GALLERY["PLUGINS"].get(name)
    return pytest.param(name, marks=[*marks, needs_plugin(plugin)] if plugin else marks)


IN_TURN = [page_parameter(name) if name in OFTEN else page_parameter(name, pytest.mark.long) for name in sorted(PAGES)]


def hostile_page(path: Path) -> Path:
    """Write a page in which every text tries to become markup or code."""
    screen = FirstScreen(EVIL, (BAD, EVIL), [LargeFigure(EVIL, EVIL)], EVIL, [EVIL])
    path.write_text(page_of.page(screen, lambda: [_hostile_section()]), encoding="utf-8")
    return path


def _hostile_section() -> Section:
    table = Table([EVIL, EVIL], [[EVIL, EVIL]])
    drawing = '<svg viewBox="0 0 100 100"><circle cx="50" cy="50" r="5"/></svg>'
    data: dict[str, Any] = {"names": [EVIL]}
    chart = Chart("evil", EVIL, EVIL, EVIL, table, drawing, [Tooltip(50, 50, EVIL)], data)
    return Section("evil-section", EVIL, [EVIL], [(EVIL, table)], [chart], [(EVIL, [FileLink(EVIL, "javascript%3Aalert(1)/run.json")])])
