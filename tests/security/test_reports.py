"""Attacks 63 to 73 and 101 to 104: hostile words of stored runs and verdicts in every form that collbench writes."""

import csv
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from markdown_it import MarkdownIt

from tests.cli.command import ROOT, Finished, run_here
from tests.slurm.made_up import doubles
from tests.stored import stored_reports

MARKUP = '<img src=x onerror=alert(1)><script>alert(1)</script>"\' onload=alert(1) x="'
STEERING = "\x1b[31m\x1b]0;title\x07\r\n::error::INJ\n\u202e"
MARKDOWN = "[click](javascript:alert(1)) <script>alert(1)</script> | x\n# heading"
METRIC = 'x"} 1\nforged_metric{a="b"} 99\n# EOF'
FORMULA = '=HYPERLINK("http://127.0.0.1:9","click")'
SURROGATES = "a\udfff\ud800b"  # two halves in the wrong order: JSON can hold them, UTF-8 cannot
TOUCHED = re.compile(r"injected")


def replaced(part: Any, old: str, new: str) -> Any:
    if isinstance(part, str):
        return part.replace(old, new)
    if isinstance(part, list):
        return [replaced(each, old, new) for each in part]
    return {replaced(name, old, new): replaced(value, old, new) for name, value in part.items()} if isinstance(part, dict) else part


def spoiled(source: Path, target: Path, changes: Iterable[tuple[str, str]]) -> Path:
    shutil.copytree(source, target)
    for path in [*target.rglob("*.json"), *target.rglob("*.jsonl")]:
        whole = path.suffix == ".json"
        documents = [json.loads(path.read_text())] if whole else [json.loads(line) for line in path.read_text().splitlines()]
        for old, new in changes:
            documents = [replaced(each, old, new) for each in documents]
        path.write_text("".join(json.dumps(each) + "\n" for each in documents))
    return target


def first_run(folder: Path, hostile: str) -> Path:
    """Host names, versions, flags of the command, libraries and NICs are the hostile text."""
    changes = [
        ("vm", hostile), ("MPICH 5.0.2", hostile), ("AMD EPYC", hostile), ("2.13.0+cpu", hostile), ("--quiet", hostile), ("lo", hostile),
    ]  # fmt: skip
    run = spoiled(ROOT / "reports/first-run", folder / "run", changes[:-1])
    path = run / "cells.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        line.update(flags=[hostile], wrong_detail=hostile, group=hostile)
        line["ceiling"] = {**(line.get("ceiling") or {}), "limited_by": hostile, "source": hostile}
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run


class Page(HTMLParser):
    """Elements and attributes of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.scripts, self.handlers, self.images = 0, list[str](), list[str]()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        self.handlers += [name for name, _ in attrs if name.startswith("on")]
        self.images += [str(value) for name, value in attrs if tag == "img" and name == "src" and value == "x"]


def written(done: Finished, *codes: int) -> str:
    assert done.returncode in (codes or (0,)), done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


PAGES: dict[str, tuple[Callable[[Path], list[str]], bool]] = {
    "63 a run": (lambda folder: ["report", str(first_run(folder, MARKUP)), "--html", "page.html"], False),
    "64 two runs": (
        lambda folder: ["report", str(first_run(folder, MARKUP)), str(stored_reports() / "link-1gbit/allreduce"), "--html", "page.html"],
        True,
    ),
    "65 pairs or a hunt": (
        lambda folder: ["report", str(spoiled(ROOT / "reports/hunt-host", folder / "run", [("cb1h", MARKUP)])), "--html", "page.html"],
        True,
    ),
    "66 a verdict": (lambda folder: ["gate", "--verdict", str(verdict(folder, MARKUP)), "--html", "page.html"], False),
}


@pytest.mark.parametrize("make", [pytest.param(make, marks=pytest.mark.long if turn else ()) for make, turn in PAGES.values()], ids=PAGES)
def test_untrusted_markup_is_not_markup_of_the_page(make: Callable[[Path], list[str]], tmp_path: Path) -> None:
    written(run_here(tmp_path, *make(tmp_path)), 0, 1, 2, 3)
    if not (tmp_path / "page.html").exists():
        return  # refused in a sentence
    text = (tmp_path / "page.html").read_text()
    page = Page(text)
    assert (page.handlers, page.images) == ([], [])
    assert page.scripts == Page(text.replace("<script>alert(1)</script>", "")).scripts and "<script>alert" not in text
    assert "Content-Security-Policy" in text and "script-src 'sha256-" in text


def test_67_a_formula_is_text_in_csv(tmp_path: Path) -> None:
    run = first_run(tmp_path, FORMULA).rename(tmp_path / "=cmd|x")
    text = written(run_here(tmp_path, "report", str(run), "--csv"))
    cases = [case for row in csv.reader(text.splitlines()) for case in row]
    assert not [case for case in cases if re.match(r"[=@\t\r]|[+-](?![\d.])", case)]


def test_68_no_metric_is_forged(tmp_path: Path) -> None:
    from prometheus_client.openmetrics.parser import text_string_to_metric_families

    written(run_here(tmp_path, "report", str(first_run(tmp_path, METRIC)), "--openmetrics", "rows.prom"))
    text = (tmp_path / "rows.prom").read_text()
    names = {family.name for family in text_string_to_metric_families(text)}
    assert names and all(name.startswith("collbench") for name in names)


def test_69_markdown_has_no_untrusted_markup(tmp_path: Path) -> None:
    text = written(run_here(tmp_path, "report", str(first_run(tmp_path, MARKDOWN)), "--markdown"))
    drawn = MarkdownIt("commonmark", {"html": True}).enable("table").render(text)
    assert "<script" not in drawn and 'javascript:alert(1)"' not in drawn and "# heading" in drawn
    assert re.findall(r"<h1>(.*?)</h1>", drawn) == ["collbench report"]


def test_70_a_line_break_makes_no_row_of_csv(tmp_path: Path) -> None:
    plain = written(run_here(tmp_path, "report", str(ROOT / "reports/first-run"), "--csv"))
    text = written(run_here(tmp_path, "report", str(first_run(tmp_path, "a\nb,c\r\nd")), "--csv"))
    assert len(list(csv.reader(text.splitlines()))) == len(list(csv.reader(plain.splitlines()))) == len(text.splitlines())


@pytest.mark.parametrize("words", [
    [], ["--html", "out"], ["--csv", "out"], ["--markdown", "out"], ["--openmetrics", "out"], ["--format", "json"], ["--format", "csv"],
], ids=" ".join)  # fmt: skip
def test_surrogates_that_are_not_a_pair_are_replaced(words: list[str], tmp_path: Path) -> None:
    done = run_here(tmp_path, "report", str(first_run(tmp_path, SURROGATES)), *words)
    assert not re.search("[\ud800-\udfff]", written(done) + done.stderr)
    assert "out" not in words or (tmp_path / "out").read_text(encoding="utf-8")


@pytest.mark.parametrize("form", ["table", "nccl-tests", "csv", "json"])
def test_71_no_terminal_is_steered_and_no_command_of_ci_begins(form: str, tmp_path: Path) -> None:
    done = run_here(tmp_path, "report", str(first_run(tmp_path, STEERING)), "--format", form)
    for text in (written(done), done.stderr):
        assert not [letter for letter in text if not letter.isprintable() and letter != "\n"]
        assert not re.search(r"^\s*::error", text, re.MULTILINE)


@pytest.mark.parametrize(
    "name", ["x; touch injected", "$(touch injected)", "`touch injected`", "x\nNodeName=ALL", "ALL", "cb[1-9]", "x State=RESUME", "x'y\"z"]
)
def test_72_and_73_no_line_of_a_hunt_runs_another_command(name: str, tmp_path: Path) -> None:
    run = spoiled(ROOT / "reports/hunt-host", tmp_path / "run", [("cb1h7", name)])
    text = run_here(tmp_path, "report", str(run)).stdout
    path = doubles(tmp_path, scontrol=f"printf '%s\\n' \"$@\" >>{tmp_path}/asked")
    for line in [line for line in text.splitlines() if "scontrol" in line]:
        subprocess.run(["bash", "-c", line], cwd=tmp_path, env={"PATH": path}, timeout=20, check=False, capture_output=True)
    asked = (tmp_path / "asked").read_text().splitlines() if (tmp_path / "asked").exists() else []
    assert not (tmp_path / "injected").exists()
    assert not [word for word in asked if word.startswith("NodeName=") and word != "NodeName=cb1h7"], asked
    assert not re.search(r"^\s*NodeName=", text, re.MULTILINE)


def verdict(folder: Path, hostile: str) -> Path:
    """A stored verdict with hostile words instead of its baseline, operations, backends and hosts."""
    (folder / "verdicts").mkdir()
    document = json.loads((ROOT / "reports/gate-trials/link-0/verdict.json").read_text())
    keep = {"result", "state", "kind", "schema", "began_utc", "finished_utc", "rule", "size_class", "reason"}

    def spoil(part: Any, name: str = "") -> Any:
        if isinstance(part, dict):
            return {key: spoil(value, key) for key, value in part.items()}
        if isinstance(part, list):
            return [spoil(each, name) for each in part]
        return (
            hostile
            if isinstance(part, str) and name in ("baseline", "candidates", "notes", "reasons", "name", "what", "before", "after")
            else part
        )

    assert keep
    path = folder / "verdicts/verdict.json"
    path.write_text(json.dumps(spoil(document)))
    return path


FORMS = {
    "101 github": ["--format", "github"], "102 JUnit": ["--junit", "out"], "103 Markdown": ["--markdown", "out"],
    "104 nagios": ["--exit-style", "nagios"],
}  # fmt: skip


@pytest.mark.parametrize("hostile", [STEERING, MARKUP, MARKDOWN, METRIC, SURROGATES])
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_an_untrusted_verdict_is_text(form: list[str], hostile: str, tmp_path: Path) -> None:
    done = run_here(tmp_path, "gate", "--verdict", str(verdict(tmp_path, hostile)), *form)
    written(done, 0, 1, 2, 3)
    out = (tmp_path / "out").read_text() if (tmp_path / "out").exists() else ""
    text = done.stdout + done.stderr + out
    assert not [letter for letter in text if not letter.isprintable() and letter != "\n"]
    assert not re.search(r"^\s*::error::INJ", text, re.MULTILINE)
    if "--junit" in form and out:
        assert not list(ElementTree.fromstring(out).iter("script"))
    if "--markdown" in form:
        drawn = MarkdownIt("commonmark", {"html": True}).enable("table").render(out)
        assert "<script" not in drawn and 'href="javascript' not in drawn and "<h1>heading" not in drawn
    if "nagios" in form:
        assert done.stdout.count("\n") == 1 and done.stdout.count("|") <= 1
