"""Pages for the browser tests: of committed runs, and one with hostile content in every text."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

from collbench.machine.peak.ceiling import Ceiling
from collbench.machine.snapshot import topology_json
from collbench.report.html import page as page_of
from collbench.report.html.chart import Chart, FileLink, Section, Table, Tooltip
from collbench.report.html.material import Material
from collbench.results.reader import read_run
from tests.machine.machines import dgx
from tests.results.rows import make_row, store

REPORTS = Path(__file__).parents[2] / "reports"
RUNS = ("shaped-1gbit-pmi2", "shaped-1gbit-pmix", "pairs-trials/host-0")
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


def real_page(path: Path) -> Path:
    """The page that `collbench report` makes of three committed runs."""
    page_of.write_html(Material([read_run(REPORTS / name) for name in RUNS], path))
    return path


def gpu_page(folder: Path) -> Path:
    """Return the page of a run on two nodes with eight GPUs each, limited by NVLinks."""
    limit = Ceiling("topology", 450e9, "NVLink 18×25 GB/s", "ring", "counted")
    rows = [make_row(size_bytes=size, ceiling=limit) for size in (1 << 20, 1 << 26)]
    run = store(folder / "run", rows, hosts=["node1", "node2"])
    machines = [replace(dgx(), hostname=host) for host in ("node1", "node2")]
    (run / "topology.json").write_text(json.dumps(topology_json(machines)))
    page_of.write_html(Material([read_run(run)], folder / "page.html"))
    return folder / "page.html"


def hostile_page(path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a page in which every text tries to become markup or code."""
    monkeypatch.setattr(page_of, "SECTIONS", [lambda _: _hostile_section()])
    page_of.write_html(Material([], path))
    return path


def _hostile_section() -> Section:
    table = Table([EVIL, EVIL], [[EVIL, EVIL]])
    drawing = '<svg viewBox="0 0 100 100"><circle cx="50" cy="50" r="5"/></svg>'
    data: dict[str, Any] = {"names": [EVIL]}
    chart = Chart("evil", EVIL, EVIL, EVIL, drawing, table, [Tooltip(50, 50, EVIL)], data)
    return Section("evil-section", EVIL, [EVIL], [(EVIL, table)], [chart], [(EVIL, [FileLink(EVIL, "javascript%3Aalert(1)/run.json")])])
