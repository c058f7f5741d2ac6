"""The page of a certificate, and what is printed: hosts, criteria with their figures, and what repeats them. It has no script."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from collbench.plugins.certify import certificate as declared
from collbench.plugins.certify.certificate import FAIL, FAULTY, INCOMPLETE, NOT_VETTED, PASS, Certificate, Judgement
from collbench.records import RecordKind
from collbench.report import forms
from collbench.report.html.chart import Section, Table
from collbench.report.html.first_screen import BAD, DOUBT, GOOD
from collbench.report.html.page import static_page
from collbench.report.screen import wants_color
from collbench.results.store import to_page

_STYLES = {FAIL: "wrong", FAULTY: "wrong", INCOMPLETE: "doubtful", NOT_VETTED: "doubtful"}
_COLORS = {PASS: GOOD, FAIL: BAD, INCOMPLETE: DOUBT}
JUDGEMENTS = RecordKind("certify", Judgement, style=lambda record: _STYLES.get(record.verdict, ""))


def print_judgements(certificate: Certificate, format: str, color: str) -> None:
    """Print the judgements, and a sentence for each host that is not vetted; as "json" the whole certificate."""
    if format == "json":
        sys.stdout.write(to_page(certificate.as_json()))
    else:
        kind = replace(JUDGEMENTS, title=lambda records: certificate.answer(), remarks=lambda records: remarks(certificate))
        forms.write(kind, certificate.judgements, format, sys.stdout, color=wants_color(sys.stdout, color))


def remarks(certificate: Certificate) -> list[str]:
    """Return a sentence for each host that is not vetted, and the commands that measure what is missing."""
    sentences = [f"{host.host}: {host.verdict}: {'; '.join(host.reasons)}" for host in certificate.hosts if host.reasons]
    commands = dict.fromkeys(judgement.command for judgement in certificate.judgements if judgement.command)
    return [*sentences, *(f"to measure what is missing: `{command}`" for command in commands)]


def page(certificate: Certificate) -> str:
    """Return the page, which needs no network."""
    repeat = [
        f"To judge the same files again: `{certificate.repeat}`, with collbench {certificate.collbench}.",
        f"This page is of `{certificate.command}`.",
    ]
    repeat += [f"Criteria of {name}: SHA-256 {digest}." for name, digest in certificate.criteria_files.items()]
    repeat += [f"{name}: {json.dumps(values)}" for name, values in certificate.criteria.items()]
    sections = [
        Section("hosts", "Hosts", tables=[_table("Hosts", declared.HostVerdict, certificate.hosts)]),
        Section("criteria", "Criteria", tables=[_table("Figures and verdicts", Judgement, certificate.judgements)]),
        Section("runs", "Runs", tables=[_table("Runs, with the command of each", declared.MeasuredRun, certificate.runs)]),
        Section("repeat", "Repeat it", repeat, [_table("Inputs: sha256sum prints the same", declared.InputDigest, certificate.inputs)]),
    ]
    badge = (_COLORS[certificate.verdict], certificate.verdict)
    template = Path(__file__).with_name("certificate.html.j2")
    return static_page(template, certificate.answer(), badge=badge, sections=sections, more=remarks(certificate))


def _table(caption: str, kind: type[Any], records: Sequence[Any]) -> tuple[str, Table]:
    of_caption = RecordKind(caption, kind, style=lambda record: _STYLES.get(getattr(record, "verdict", ""), ""))
    return caption, Table.of(forms.frame_of(of_caption, records))
