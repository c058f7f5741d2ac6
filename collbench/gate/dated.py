"""Allocations that lie in a folder, be it a baseline or runs, in the order in which they began: what a history is made of."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from collbench.analysis.launches import launch_folders
from collbench.errors import UsageError
from collbench.gate.allocation import Allocation, allocations_in, in_order
from collbench.gate.baseline import is_baseline, load
from collbench.gate.steady import flipped, usual_canary
from collbench.gate.steps import LEAST

_MOST_NAMED = 3
_RUN = ("run.json", "cells.jsonl")


def dated_in(path: Path) -> tuple[list[Allocation], list[str]]:
    """The allocations of a baseline, or of the runs in a folder, in the order in which they began; and what has to be known, in sentences.

    Raises UsageError where there is none, or none says when it began.
    """
    found, notes = (list(load(path).allocations), []) if is_baseline(path) else _of_runs(path)
    ordered = in_order([each for each in found if each.began is not None])
    if not ordered:
        raise UsageError(f"{path}: no allocation says when it began: there is no history without an order; name another folder")
    return ordered, [*notes, *_notes(found, ordered)]


def _of_runs(path: Path) -> tuple[list[Allocation], list[str]]:
    """The runs in it, or the run that it is. What cannot be read is left out, and told."""
    folders = [path] if _holds_runs(path) else sorted(each for each in _inside(path) if each.is_dir() and _holds_runs(each))
    if not folders:
        raise UsageError(f"{path} holds neither allocations of a baseline nor runs: name such a folder")
    try:
        return allocations_in(folders), []
    except UsageError:
        refused = {folder: why for folder in folders if (why := _refused(folder))}
        if not refused or len(refused) == len(folders):
            raise
    more = f" and {len(refused) - 1} more" if len(refused) > 1 else ""
    return allocations_in([folder for folder in folders if folder not in refused]), [f"left out: {next(iter(refused.values()))}{more}"]


def _inside(path: Path) -> list[Path]:
    try:
        return list(path.iterdir())
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror or error}): name a baseline, or a folder that holds runs") from error


def _holds_runs(folder: Path) -> bool:
    return any((folder / name).exists() for name in _RUN) or bool(launch_folders(folder))


def _refused(folder: Path) -> str | None:
    """Why a folder cannot be taken; None where it can."""
    try:
        allocations_in([folder])
    except UsageError as error:
        return str(error)
    return None


def _notes(found: Sequence[Allocation], ordered: Sequence[Allocation]) -> list[str]:
    without = [each for each in found if each.began is None]
    torn = [each for each in ordered if each.unfinished]
    wrong = [each for each in ordered if any(measured.wrong for measured in each.cells.values())]
    slowed = [each for each in ordered if each.slowed]
    usual = usual_canary(ordered)
    flipped_in = [each for each in ordered if any(flipped(each, usual))]
    told = [(without, "no start is known, so that nothing orders them; left out"), (torn, "not every launch came to its end"),
            (wrong, "what arrived was not what was sent"), (slowed, "slowed on purpose"),
            (flipped_in, "the machine was in another state in some launches (canary more than 20 % off the others')")]  # fmt: skip
    notes = [f"{_named(each)}: {what}" for each, what in told if each]
    if len(ordered) < 2 * LEAST:
        notes.append(f"{len(ordered)} allocations: a change shows from {2 * LEAST} on, {LEAST} before it and {LEAST} after")
    return notes


def _named(allocations: Sequence[Allocation]) -> str:
    more = f" and {len(allocations) - _MOST_NAMED} more" if len(allocations) > _MOST_NAMED else ""
    return ", ".join(each.name for each in allocations[:_MOST_NAMED]) + more
