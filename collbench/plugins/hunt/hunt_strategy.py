"""The strategy of a hunt at rank 0 and its output: a line per round, then the verdict and the recommended action."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collbench.errors import RunFailed, UsageError
from collbench.plugins.hunt.places import RoundOrder
from collbench.plugins.hunt.protocol import GroupFigure, Hunt, HuntVerdict, Options, RoundResult
from collbench.plugins.hunt.records import HuntRound, place_hosts
from collbench.reason import as_json
from collbench.report.dry_run import MEASUREMENTS
from collbench.report.progress import ProgressPrinter
from collbench.report.screen import wants_color
from collbench.units import format_duration

if TYPE_CHECKING:
    from collbench.measuring.session import Plan

# By flag of a round the reason why its figures depend on the start of the launch, not on the machines.
_NO_DRAIN_FLAGS = {
    "oversubscribed": "more ranks than cores were running: start fewer",
    "shared_gpu": "several ranks used one GPU: start one rank per GPU",
}


class HuntProgressPrinter(ProgressPrinter):
    """The HuntListener of a hunt. Use it in a `with` block, like ProgressPrinter."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        super().__init__(arguments)
        self._hunt: Hunt | None = None
        self._verdict: HuntVerdict | None = None
        self._options = Options()
        self._manager = ""
        self._flags: set[str] = set()
        self._advice: list[str] = []

    def plan(self, about: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the largest number of rounds, and the results of a link file. Raises UsageError before results are stored."""
        from collbench.plugins.hunt.drain import check_apply
        from collbench.plugins.hunt.strategy import hunt, promise

        self._manager = check_apply(os.environ) if self._arguments.apply else ""
        self._options, crossed = options_of(self._arguments, about)
        self._hunt = hunt(about["places"], self._options, place_hosts(about))
        return {"promised": promise(len(about["places"]), self._options), "seed": self._options.seed, **crossed}

    def begin(self, plan: Plan, folder: str) -> None:
        """Print the largest number of rounds."""
        about = self._about = plan.facts["hunt"]
        self._folder = folder
        longest = format_duration(about["promised"] * MEASUREMENTS * about["max_time_s"])
        rounds = "one round" if about["promised"] == 1 else f"{about['promised']} rounds"
        self.note(f"hunt among {len(about['places'])} {about['by']}s: at most {rounds}, of {longest} in all")

    def record(self, record: Any, place: int | None) -> None:
        """Note the flags of a round."""
        self._flags |= set(record.flags)

    def next(self, last: Sequence[HuntRound]) -> RoundOrder | None:
        """Return the hunt's next request, given the result of the last round."""
        assert self._hunt is not None
        try:
            request = self._hunt.send(answer_of(last[-1])) if last else next(self._hunt)
        except StopIteration as stop:
            self._verdict = stop.value
            return None
        return RoundOrder(**vars(request))

    def progress(self, text: str, done: int, total: int | None, eta_s: float | None = None) -> None:
        """Update the live line, or write a line to the log."""
        if self._live:
            self._screen.progress(text, done, total or 0, None)
        else:
            self.note(f"round {done + 1} of at most {total}, {text}")

    def verdict(self, rounds: Sequence[HuntRound], about: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the verdict for run.json."""
        assert self._verdict is not None
        found = self._verdict
        known = {
            "result": found.result, "suspects": [each.as_json() for each in found.suspects], "rounds": found.rounds,
            "notes": [each.render() for each in found.notes], "note_facts": as_json(found.notes),
            "no_verdict": found.no_verdict and found.no_verdict.render(), "no_verdict_fact": found.no_verdict and as_json(found.no_verdict),
            "middle": found.middle,
        }  # fmt: skip
        self._about = {**about, "verdict": known}
        return known

    def act(self, folder: Path, event: Callable[..., None]) -> None:
        """Write recommendation.json, and with --apply drain the confirmed nodes. Raises RunFailed if the file cannot be written."""
        from collbench.plugins.hunt.drain import HuntSummary, lines, recommendation

        assert self._verdict is not None
        about = HuntSummary.here(
            folder, os.environ, [(host, node) for host, node in self._about["nodes"]], allocation=self._arguments.allocation,
            manager=self._manager, no_drain=_no_drain(self._arguments, self._about, self._flags),
        )  # fmt: skip
        known = recommendation(self._verdict, about)
        path = _stored(folder, known)
        self._advice = lines(known)
        if self._arguments.apply:
            self._apply(folder, known, event)
        self.note(f"recommendation: {path}")

    def _apply(self, folder: Path, document: dict[str, Any], event: Callable[..., None]) -> None:
        """Drain the nodes. Each drain is stored before and after its request with the command that reverts it, for the case of an abort."""
        from collbench.plugins.hunt.drain import BEGUN, apply, parse_cap

        def keep(entry: dict[str, Any]) -> None:
            event("drain", **entry)
            kept = document["applied"]
            if kept and kept[-1]["action"] == BEGUN:  # the process ended during this drain
                kept.pop()
            kept.append(entry)
            _stored(folder, document)

        applied = apply(document, parse_cap(self._arguments.max_drain), os.environ, note=keep)
        self._advice += applied.lines()
        if applied.refused:
            document["refused"] = applied.refused
            _stored(folder, document)

    def end(self) -> None:
        """Print the verdict, the recommended action, and the folder of the run."""
        self.close()
        if self._about.get("verdict"):
            from collbench.plugins.hunt.kind import advice_of
            from collbench.plugins.hunt.text import write_hunt

            if not self._advice:  # a complete run that was resumed has acted before
                self._advice, _ = advice_of(Path(self._folder))
            format, color = self._arguments.format, wants_color(sys.stdout, self._arguments.color)
            quiet = self._arguments.quiet
            write_hunt(self._about, format, sys.stdout, color=color, advice=self._advice, run=Path(self._folder).name, quiet=quiet)
            sys.stdout.flush()
            for line in self._advice if format == "csv" else ():
                self.note(line)
        super().end()


def options_of(arguments: argparse.Namespace, about: Mapping[str, Any]) -> tuple[Options, dict[str, Any]]:
    """Return (the hunt's options, the entries of a link file for run.json's "hunt"). Raises UsageError.

    The entries are sentences about the links that messages cross, and about links without messages.
    """
    if arguments.method == "groups" and about["no_groups"]:
        raise UsageError(f"--method groups needs all-reduce, but {about['no_groups']}: choose another --backend, or --method pairs")
    can_reduce = about["no_groups"] is None
    options = Options(
        method=arguments.method if can_reduce else "pairs",
        rounds=arguments.rounds,
        most_rounds=max(1, int(arguments.budget / (MEASUREMENTS * arguments.max_time))),
        seed=arguments.seed or 0,
        growing=can_reduce and not arguments.no_growing,
        isolate=not arguments.no_isolation,
        can_inside=can_reduce and about["ranks_per_place"] > 1,
        nics=tuple(about["nics"]),
    )
    return _with_cover(options, arguments.cover_links, about) if arguments.cover_links else (options, {})


def _with_cover(options: Options, path: Path, about: Mapping[str, Any]) -> tuple[Options, dict[str, Any]]:
    from collbench.plugins.hunt.sweep import cover_links

    if options.method == "groups":
        raise UsageError("--cover-links needs pairs, which --method groups does not measure: omit one of them")
    found = cover_links(path, place_hosts(about))
    crossed = {"crossed": [found.sentence(), *found.notes], "uncovered": list(found.uncovered)}
    return replace(options, leaf_of=found.leaf_of, cover=found.pairs), crossed


def answer_of(one: HuntRound) -> RoundResult:
    """Return the result of a round, as the hunt's strategy takes it."""
    figures = [
        GroupFigure(*each)
        for each in zip(
            one.speed_bytes_per_s, one.backward_bytes_per_s, one.latency_s, one.low_bytes_per_s, one.high_bytes_per_s, one.wrong, one.na,
            one.cpu_wait or (0.0,) * len(one.groups), one.flipped or (False,) * len(one.groups), strict=True,
        )
    ]  # fmt: skip
    return RoundResult(tuple(figures), one.flags)


def _stored(folder: Path, document: Mapping[str, Any]) -> Path:
    from collbench.plugins.hunt.drain import store

    try:
        return store(folder, document)
    except OSError as error:
        raise RunFailed(f"{folder}: cannot write recommendation.json ({error.strerror or error}): check the folder and its disk") from error


def _no_drain(arguments: argparse.Namespace, about: Mapping[str, Any], flags: Collection[str]) -> str:
    """Return why no node may be drained: the launch itself causes the slow ranks. "" if nodes may be drained."""
    if about["virtual"]:
        return f"backend {about['backend']} simulates its ranks"
    if arguments.slowed:
        return "ranks were slowed on purpose (--slowed)"
    return next((why for flag, why in _NO_DRAIN_FLAGS.items() if flag in flags), "")
