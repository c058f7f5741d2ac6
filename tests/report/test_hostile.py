"""Untrusted text in run folders, file names and logs is printed as plain text: page, CSV, Markdown, OpenMetrics, terminal."""

import csv
import io
import json
import re
import unicodedata
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from collbench.cli.main import run as run_command
from collbench.report.cases import times
from collbench.report.headlines import lines
from collbench.report.html.overview import section
from collbench.report.material import Material
from collbench.report.runs import report_run
from collbench.results.reader import Run, row_from_json
from collbench.results.store import parse_object, to_line
from tests.analysis.test_alpha_beta import SIZES, case
from tests.cli.command import ROOT
from tests.conftest import needs_plugin
from tests.results.rows import NIC, make_row, not_measured, store

SCRIPT = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
FORMULA = "=cmd|' /C calc'!A0"
BIDI = "\u202eevil\u2066\u200f\x1b[2J\x07\n\r\t\x00"
LINK = "javascript:alert(3) ../../etc/passwd [x](javascript:y) https://evil.example www.evil.example @team"
MARKUP = "$\\frac{1}{0}$ {{ 7*7 }} {% x %} &lt; ]]> --> *b* `c` |d| \\ \" '"
ALL = f"{BIDI}{FORMULA}{SCRIPT}{LINK}{MARKUP}{'é' * 5000}"
EVIL = (SCRIPT, FORMULA, BIDI, LINK, MARKUP, ALL)
NAMES = (
    SCRIPT.replace("/", "∕"), FORMULA.replace("/", "-"), "javascript:alert(1)", "\u202egnp.exe", "a\nb\x1b[2J", "..evil", "--html",
    "%2e%2e",
)  # fmt: skip
FORBIDDEN = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


@dataclass
class Outputs:
    """All that one report writes."""

    html: str
    csv: str
    markdown: str
    openmetrics: str
    table: str
    said: str


def written(folder: Path, *runs: Path) -> Outputs:
    """Everything that `collbench report` makes of the runs."""
    files = {name: folder / f"out.{name}" for name in ("html", "md", "csv", "prom")}
    table, said = io.StringIO(), io.StringIO()
    report_run(runs, files["csv"], "table", table, html=files["html"], markdown=files["md"], openmetrics=files["prom"], err=said)
    texts = [files[name].read_bytes().decode("utf-8") for name in ("html", "csv", "md", "prom")]
    return Outputs(*texts, table.getvalue(), said.getvalue())


class Page(HTMLParser):
    """What a browser would make of the page: its scripts, addresses, attributes; text between the tags."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def check_html(text: str) -> None:
    page = Page(text)
    tags = [tag for tag, _ in page.elements]
    runnable = [attributes for tag, attributes in page.elements if tag == "script" and attributes.get("type") != "application/json"]
    assert len(runnable) == 1 and runnable[0].keys() <= {"type"}
    assert not {"iframe", "object", "embed", "base", "form", "foreignobject", "audio", "video"} & set(tags)
    icon = ("link", {"rel": "icon", "href": "data:,"})  # an empty one, which no browser asks a server for
    assert [element for element in page.elements if element[0] == "link"] == [icon]
    for tag, attributes in page.elements:
        if tag == "link":
            continue
        assert not [name for name in attributes if name.startswith("on") or name in ("srcdoc", "formaction", "ping")], (tag, attributes)
        for name in ("src", "href", "xlink:href"):
            address = attributes.get(name) or "#"
            assert address.startswith("#") or ":" not in address, (tag, address)
    check_letters(text)


def check_letters(text: str, also: str = "\n") -> None:
    """No sign that moves a cursor or turns a line round."""
    bad = {letter for letter in set(text) if (letter not in also and unicodedata.category(letter) == "Cc")
           or unicodedata.bidirectional(letter) in FORBIDDEN}  # fmt: skip
    assert not bad


def check_csv(text: str) -> None:
    rows = list(csv.reader(io.StringIO(text, newline="")))
    assert len({len(row) for row in rows}) == 1
    for cell in (cell for row in rows for cell in row):
        assert not cell.startswith(("=", "+", "@", "\t", "\r", "＝", "＋", "－", "＠")), cell[:80]
        assert not cell.startswith("-") or re.fullmatch(r"-(inf|[\d.]+(e[+-]?\d+)?)", cell), cell[:80]
    check_letters(text, also="\r\n")


def check_markdown(text: str) -> None:
    tokens = MarkdownIt("commonmark", {"html": True, "linkify": False}).enable(["table", "strikethrough"]).parse(text)
    kinds = [(each.type, each.content) for token in tokens for each in (token, *(token.children or ()))]
    assert not {kind for kind, _ in kinds} & {"link_open", "image", "html_block", "em_open", "strong_open", "s_open", "fence", "code_block"}
    assert {content for kind, content in kinds if kind == "html_inline"} <= {"<!-- -->"}
    assert "://" not in text and "www." not in text
    check_letters(text)


def check_openmetrics(text: str) -> None:
    parse: Any = text_string_to_metric_families
    families = list(parse(text))
    assert {family.name.startswith("collbench_") for family in families} == {True}
    for line in text.splitlines():
        assert line.startswith(("collbench_", "# HELP collbench_", "# TYPE collbench_", "# UNIT collbench_", "# EOF")), line[:80]
    check_letters(text)


def check(outputs: Outputs) -> None:
    check_html(outputs.html)
    check_csv(outputs.csv)
    check_markdown(outputs.markdown)
    check_openmetrics(outputs.openmetrics)
    check_letters(outputs.table + outputs.said)


def _evil_rows(text: str) -> Iterator[Any]:
    ceiling = type(NIC)(text, 50e9, text, text, text)
    names = ("backend", "api", "device", "dtype", "redop", "mode", "buffers", "group", "registration", "algorithm", "protocol", "traffic")
    yield make_row(8, operation=text, flags=(text, "two_modes"), wrong=3, wrong_detail=text, stopped=text, evidence={text: text},
                   ceiling=ceiling, hard_bound=ceiling, **dict.fromkeys(names, text))  # fmt: skip
    yield make_row(16, backend=text, ceiling=ceiling, slowest_ranks={"worst": [[0, 5]], "count": 1})
    yield not_measured(text, size_bytes=32, backend=text)
    yield from (make_row(8 << step, busbw_bytes_per_s=1e9 * step) for step in range(3, 9))


def _evil_info(text: str) -> dict[str, Any]:
    return {
        "command": ["collbench", text, text], "hosts": [text, f"{text}2"], "launcher": text, "launcher_facts": {text: text},
        "rank_map": [{"rank": rank, "host": text, "cpus": text, "gpu": text, "gpu_name": text} for rank in range(4)],
        "backends": {text: {text: text}, "nccl": {"nccl": text}}, "libraries": [text, f"/lib/{text}.so.1"], "collbench": text,
        "environment": {"NCCL_DEBUG": text, "NCCL_ALGO": text}, "host": dict.fromkeys(("hostname", "cpu_model", "system", "kernel"), text),
        "suite": {"title": text}, "started_utc": text, "imported": {"files": [{"name": text}], "missing": [text], "doubts": [text],
        "tables": [dict.fromkeys(("file", "tool", "version", "program", "statistic"), text)]},
    }  # fmt: skip


def evil_run(folder: Path, text: str) -> Path:
    """A run with `text` in every place that takes a text."""
    store(folder, list(_evil_rows(text)), **_evil_info(text))
    events = [{"kind": kind, "text": text, "code": text, "why": text, "finding": text, "remedy": text, "where": text, "host": text}
              for kind in ("finding", "warning", "abort", "hang", text)]  # fmt: skip
    (folder / "events.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in events))
    port = {"name": text, "kind": text, "speed_bits_per_s": 1e9, "address": text}
    machines = [{"hostname": text, "cpus": [], "numa_nodes": [], "gpus": [port], "nics": [port], "links": [port], "findings": [text]}]
    (folder / "topology.json").write_text(json.dumps({"schema": 1, "machines": machines, "interfaces": {text: {text: text}}}))
    return folder


@pytest.mark.parametrize("text", EVIL, ids=range(len(EVIL)))
def test_texts_of_a_run_are_letters_everywhere(text: str, tmp_path: Path) -> None:
    outputs = written(tmp_path, evil_run(tmp_path / "run", text))
    check(outputs)
    actual = "".join(letter if letter.isprintable() else "?" for letter in text)[:20]
    assert "".join(Page(outputs.html).texts).count(actual) > 20 and actual in outputs.csv.replace('""', '"')
    assert outputs.html.count("<figure ") >= 2


@pytest.mark.parametrize("text", ["../../etc/passwd", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "＝1", "＠A1"])
def test_no_case_of_a_spreadsheet_is_a_formula(text: str, tmp_path: Path) -> None:
    run, rows = evil_run(tmp_path / "run", text), tmp_path / "rows.csv"
    assert report_run([run], rows, "table", io.StringIO(), err=io.StringIO()) == 0
    check_csv(rows.read_bytes().decode())


def test_two_such_runs_and_what_differs_between_them(tmp_path: Path) -> None:
    runs = [evil_run(tmp_path / str(place), text) for place, text in enumerate((ALL, SCRIPT))]
    check(written(tmp_path, *runs))


def test_names_of_folders_are_letters_and_their_links_lead_beside_the_page(tmp_path: Path) -> None:
    runs = [store(tmp_path / name, [make_row(8 << place)]) for place, name in enumerate(NAMES)]
    outputs = written(tmp_path, *runs)
    check(outputs)
    links = [attributes["href"] or "" for tag, attributes in Page(outputs.html).elements if tag == "a"]
    files = [link for link in links if not link.startswith("#")]
    assert "javascript%3Aalert%281%29/run.json" in files and "--html/cells.jsonl" in files and "%252e%252e/run.json" in files
    assert len([link for link in files if link.endswith("/cells.jsonl")]) == len(NAMES)


@needs_plugin("hunt")
@pytest.mark.parametrize("text", [SCRIPT, FORMULA + BIDI + LINK + MARKUP], ids=range(2))
def test_names_of_hosts_in_a_matrix_are_letters(text: str, tmp_path: Path) -> None:
    actual = (ROOT / "reports" / "pairs-trials" / "host-0" / "run.json").read_text()
    rounds = (ROOT / "reports" / "pairs-trials" / "host-0" / "pairs.jsonl").read_text()
    info = json.loads(actual)
    info["pairs"] |= {"places": [f"{text}{place}" for place in range(8)], "backend": text, "by": text}
    info["hosts"] = info["pairs"]["places"]
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text(json.dumps(info))
    (tmp_path / "run" / "pairs.jsonl").write_text(rounds)
    outputs = written(tmp_path, tmp_path / "run")
    check(outputs)
    assert "sends and receives at 50 % " in outputs.html


_WORD = st.text(max_size=3)
_NUMBER = st.floats() | st.integers()
_JSON = st.none() | st.booleans() | _NUMBER | _WORD | st.lists(st.integers() | _WORD, max_size=2)
_TIMES = ("p50", "ci_low", "ci_high", "min", "p95", "p99", "max")
_FIELDS = {
    "size_bytes": st.integers(), "ranks": st.integers(), "wrong": st.integers(), "launches": st.integers(), "na": st.none() | _WORD,
    "percent_of_ceiling": _NUMBER, "algbw_bytes_per_s": _NUMBER, "busbw_bytes_per_s": _NUMBER, "n_eff": _NUMBER,
    "flags": st.lists(_WORD, max_size=2), "time_s": st.fixed_dictionaries({name: _NUMBER | st.none() for name in _TIMES}),
    "ceiling": st.fixed_dictionaries({"kind": st.text(max_size=2), "bytes_per_s": _NUMBER | st.none(), "limited_by": _WORD}),
    "modes": st.lists(_JSON | st.fixed_dictionaries({"time_s": _JSON, "share": _JSON}), max_size=3),
    "evidence": st.fixed_dictionaries({"exit_skew_s": _JSON | st.fixed_dictionaries({"p50": _JSON, "p95": _JSON, "messages": _JSON})}),
}  # fmt: skip
_FACTS = ("finished_utc", "started_utc", "collbench", "hosts", "backends", "host", "imported")


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_rows_and_facts_of_hostile_files_never_raise(data: st.DataObject) -> None:
    rows = []
    for place, size in enumerate(SIZES[:8]):
        if place % 4 == 0:
            series = data.draw(st.fixed_dictionaries({}, optional={"operation": _WORD, "backend": _WORD}))
        values = {**case(size).as_json(), **series, **data.draw(st.fixed_dictionaries({}, optional=_FIELDS))}
        with suppress(ValueError):
            rows.append(row_from_json(parse_object(to_line(values).encode())))
    run = Run(Path("run"), data.draw(st.dictionaries(st.sampled_from(_FACTS), _JSON | st.dictionaries(_WORD, _JSON))), rows)
    assert all(line.text.isprintable() for line in lines([run], rows))
    assert all(times(row).isprintable() for row in rows)
    found = section(Material([run], Path("page.html")))
    assert found is None or all(cell.isprintable() for _, table in found.tables for row in table.rows for cell in row)


@needs_plugin("importers")
@pytest.mark.parametrize("name", ["=cmd|<script>alert(1)<.log", "javascript:alert(1)\u202e\n\x1b[2J"])
def test_names_and_hosts_of_a_log_are_letters(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / name
    text = (ROOT / "tests/plugins/importers/samples/rccl_tests.txt").read_text(encoding="utf-8")
    text = text.replace("amd-node", "<script>alert(1)</script>").replace("AMD Instinct MI300X", "=cmd|x \u202e{{7*7}} [y](javascript:z)")
    log.write_text(text)
    assert run_command(["import", str(log), "--out", str(tmp_path / "run"), "--operation", "allreduce"]) == 0
    said = capsys.readouterr()
    check_letters(said.out)
    check_letters(said.err)
    check(written(tmp_path, tmp_path / "run"))
