"""The verdict as a plugin of Nagios says it (Monitoring Plugins Development Guidelines): one line, its state first, then figures."""

from __future__ import annotations

from collbench.gate.verdict import ACCEPTED, CONFIRMED, SUSPECTED, UNDECIDED, Verdict, nagios_state
from collbench.report.headlines import short
from collbench.report.table import Line
from collbench.report.words import headline, name_of, of, open_ones

_STATES = ("OK", "WARNING", "CRITICAL", "UNKNOWN")
_LONGEST = 400  # letters: NRPE of old carries 1,024 bytes


def lines(verdict: Verdict) -> list[Line]:
    """ "COLLBENCH CRITICAL - regression: 1 confirmed: allreduce 64 MiB mpi +12.0 % … | confirmed=1;;0;0 …"."""
    return [Line(f"COLLBENCH {_STATES[nagios_state(verdict)]} - {_text(verdict)} | {_figures(verdict)}")]


def of_failure(sentence: str) -> Line:
    """ "COLLBENCH UNKNOWN - nowhere is not a baseline …": there is no verdict at all."""
    return Line(f"COLLBENCH UNKNOWN - {_plain(sentence)}")


def _text(verdict: Verdict) -> str:
    """The result and its first reason: the cause, the worst suspect, or why nothing is known."""
    worst = next(open_ones(verdict), None)
    first = [verdict.cause.sentence] if verdict.cause is not None else []
    first += [f"{name_of(worst)} {of(worst)}"] if worst is not None else []
    return _plain("; ".join([headline(verdict), *first, *verdict.reasons]))


def _plain(text: str) -> str:
    """On one line, without the bar that begins the figures."""
    return short(text, _LONGEST).replace("|", "/")


def _figures(verdict: Verdict) -> str:
    """Counts with the ranges in which all is well: value;warning;critical;least."""
    unknown = sum(each.state == UNDECIDED for each in verdict.groups)
    counts = {
        CONFIRMED: f"{verdict.count(CONFIRMED)};;0;0", SUSPECTED: f"{verdict.count(SUSPECTED)};0;;0",
        ACCEPTED: f"{verdict.count(ACCEPTED)};0;;0", "groups": f"{len(verdict.groups)};;;0", "unknown_groups": f"{unknown};;;0",
        "cells": f"{verdict.cells};;;0", "baseline_allocations": f"{verdict.allocations};;;0",
    }  # fmt: skip
    return " ".join(f"{name}={told}" for name, told in counts.items())
