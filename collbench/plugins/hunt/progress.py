"""The listeners of pairs runs and hunts, at rank 0: they request the rounds, print a line for each, then the result and the next action."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from collbench.errors import RunFailed, UsageError
from collbench.plugin import hooks_of
from collbench.plugins.hunt.managers import node_names
from collbench.plugins.hunt.protocol import GroupStage, HuntVerdict, Options, RoundRequest, RoundResult, Suspect, result_of, result_of_pairs
from collbench.plugins.hunt.records import HuntRound, PairRound, StoredHunt, StoredPairs, matrix_of, place_hosts
from collbench.reason import as_json
from collbench.report.dry_run import MEASUREMENTS
from collbench.report.progress import Output, ProgressPrinter
from collbench.results.row import Row
from collbench.units import format_duration

if TYPE_CHECKING:
    from collbench.measuring.request import Placement
    from collbench.measuring.session import Plan
    from collbench.plugins.hunt.places import HuntRequest, PairsRequest, Places

# By flag of a round the reason why its figures depend on the start of the launch, not on the machines.
_NO_DRAIN_FLAGS = {
    "oversubscribed": "more ranks than cores were running: start fewer",
    "shared_gpu": "several ranks used one GPU: start one rank per GPU",
}


class PairsProgressPrinter(ProgressPrinter):
    """The listener of a pairs run (a `RoundsListener`). Use it in a `with`, as `ProgressPrinter`."""

    def __init__(self, output: Output, request: PairsRequest) -> None:
        super().__init__(output, request)
        self._pairs: StoredPairs | None = None
        self._retest: Generator[RoundRequest, RoundResult, list[Suspect]] | None = None
        self._round_request: RoundRequest | None = None
        self._suspects: list[Suspect] = []
        self._external: list[Row] = []

    def plan(self, about: Mapping[str, Any]) -> Mapping[str, Any]:
        """Store what is known before the first round."""
        self._about = about
        return {}

    def begin(self, plan: Plan, folder: str) -> None:
        """Store the folder."""
        self._folder = folder

    def progress(self, text: str, done: int, total: int | None, eta_s: float | None = None) -> None:
        """Update the live line, or print one for the log."""
        if total is None:
            self.note(f"suspects again, round {done}: {text}")
        elif self._live:
            self._screen.progress(f"round of {text}", done, total, eta_s)
        else:
            eta = "" if eta_s is None or done == total else f", {format_duration(eta_s)} left"
            self.note(f"round {done} of {total}: {text}{eta}")

    def record(self, record: Any, place: int | None) -> None:
        """Keep the rows of external tools, to print below the matrix."""
        if isinstance(record, Row):
            self._external.append(record)

    def next(self, last: Sequence[PairRound]) -> RoundRequest | None:
        """Return the next round that measures suspects again; None if there is none."""
        from collbench.plugins.hunt.strategy import judge

        try:
            if self._retest is None or self._round_request is None:
                self._retest = judge(matrix_of(self._about, last), last, self._request.launch.seed)
                self._round_request = next(self._retest)
            else:
                result = result_of_pairs(self._round_request.groups, last, self._about["size_bytes"])
                self._round_request = self._retest.send(result)
        except StopIteration as stop:
            self._suspects = stop.value
            return None
        return self._round_request

    def verdict(self, rounds: Sequence[PairRound], about: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the verdict: each slow node and pair that measuring again confirmed, and the judged suspects."""
        judged = [suspect.as_json() for suspect in self._suspects]
        self._pairs = StoredPairs(about, list(rounds), external=self._external, judged=judged)
        effects = self._pairs.effects
        findings = [finding.stored(effects.matrix.places) for finding in effects.findings()]
        return {"result": effects.result, "judged": judged, "findings": findings}

    def end(self) -> None:
        """Print the matrix, and the run's folder."""
        self.close()
        if self._pairs:
            from collbench.plugins.hunt.pairs_text import DIRECTED_PAIRS

            self.write_records(DIRECTED_PAIRS, self._pairs)
        super().end()


class HuntProgressPrinter(ProgressPrinter):
    """The listener of a hunt (a `RoundsListener`). Use it in a `with`, as `ProgressPrinter`."""

    def __init__(self, output: Output, request: HuntRequest) -> None:
        super().__init__(output, request)
        self._hunt: Generator[RoundRequest, RoundResult, HuntVerdict] | None = None
        self._result: StoredHunt | None = None
        self._verdict: HuntVerdict | None = None
        self._manager = ""
        self._flags: set[str] = set()
        self._advice: list[str] = []

    def plan(self, about: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the largest number of rounds, and the results of a link file. Raises UsageError before results are stored."""
        from collbench.plugins.hunt.drain import check_apply
        from collbench.plugins.hunt.strategy import hunt, promise

        self._manager = check_apply(os.environ) if self._request.apply else ""
        options, crossed = options_of(self._request, about)
        self._hunt = hunt(about["places"], options, place_hosts(about))
        return {"promised": promise(len(about["places"]), options), "seed": options.seed, **crossed}

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

    def next(self, last: Sequence[HuntRound]) -> RoundRequest | None:
        """Return the hunt's next request, given the result of the last round."""
        assert self._hunt is not None
        try:
            return self._hunt.send(result_of(last[-1])) if last else next(self._hunt)
        except StopIteration as stop:
            self._verdict = stop.value
            return None

    def progress(self, text: str, done: int, total: int | None, eta_s: float | None = None) -> None:
        """Update the live line, or write a line to the log."""
        if self._live:
            self._screen.progress(text, done, total or 0, None)
        else:
            self.note(f"round {done + 1} of at most {total}, {text}")

    def verdict(self, rounds: Sequence[HuntRound], about: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the verdict for run.json."""
        assert self._verdict is not None
        verdict = self._verdict
        stored = {
            "result": verdict.result, "suspects": [suspect.as_json() for suspect in verdict.suspects], "rounds": verdict.rounds,
            "notes": [note.render() for note in verdict.notes], "note_facts": as_json(verdict.notes),
            "no_verdict": verdict.no_verdict and verdict.no_verdict.render(),
            "no_verdict_fact": verdict.no_verdict and as_json(verdict.no_verdict), "middle": verdict.middle,
        }  # fmt: skip
        self._result = StoredHunt({**about, "verdict": stored}, list(rounds))
        return stored

    def act(self, folder: Path, event: Callable[..., None]) -> None:
        """Write recommendation.json, and with --apply drain the confirmed nodes. Raises RunFailed if the file cannot be written.

        Each drain is stored before and after its request with the command that reverts it, for the case of an abort.
        """
        from collbench.plugins.hunt.drain import BEGUN, apply, parse_cap
        from collbench.plugins.hunt.recommendation import HuntSummary, lines, recommendation

        assert self._verdict is not None and self._result is not None
        summary = HuntSummary.here(
            folder, os.environ, [(host, node) for host, node in self._result.about["nodes"]], allocation=self._request.launch.allocation,
            manager=self._manager, no_drain=_no_drain(self._request, self._result.about, self._flags),
        )  # fmt: skip
        document = recommendation(self._verdict, summary)
        path = _stored(folder, document)
        self._advice = lines(document)

        def keep(entry: dict[str, Any]) -> None:
            event("drain", **entry)
            entries = document["applied"]
            if entries and entries[-1]["action"] == BEGUN:  # the process ended during this drain
                entries.pop()
            entries.append(entry)
            _stored(folder, document)

        if self._request.apply:
            applied = apply(document, parse_cap(self._request.max_drain), os.environ, note=keep)
            self._advice += applied.lines()
            if applied.refused:
                document["refused"] = applied.refused
                _stored(folder, document)
        self.note(f"recommendation: {path}")

    def end(self) -> None:
        """Print the verdict, the recommended action, and the folder of the run."""
        self.close()
        if self._result:
            from collbench.plugins.hunt.kind import advice_of
            from collbench.plugins.hunt.text import SUSPECTS

            if not self._advice:  # a complete run that was resumed has acted before
                self._advice, _ = advice_of(Path(self._folder))
            self.write_records(SUSPECTS, replace(self._result, advice=self._advice))
            for line in self._advice if self._output.format == "csv" else ():
                self.note(line)
        super().end()


def options_of(request: HuntRequest, about: Mapping[str, Any]) -> tuple[Options, dict[str, Any]]:
    """Return (the hunt's options, the entries of a link file for run.json's "hunt"). Raises UsageError.

    The entries are sentences about the links that messages cross, and about links without messages.
    """
    if request.method == "groups" and about["no_groups"]:
        raise UsageError(f"--method groups needs all-reduce, but {about['no_groups']}: choose another --backend, or --method pairs")
    can_reduce = about["no_groups"] is None
    options = Options(
        method=request.method if can_reduce else "pairs",
        rounds=request.rounds,
        most_rounds=max(1, int(request.budget_s / (MEASUREMENTS * request.launch.budget.max_time_s))),
        seed=request.launch.seed,
        growing=can_reduce and request.growing,
        isolate=request.isolate,
        can_inside=can_reduce and about["ranks_per_place"] > 1,
        nics=tuple(about["nics"]),
    )
    crossed: list[str] = []
    if request.groups:
        stage = _group_stage(request.groups, options, about)
        options = replace(options, group_stage=stage, leaf_of=stage.leaf_of or None)
        crossed += stage.sentences
    if not request.cover_links:
        return options, {"crossed": crossed} if crossed else {}
    from collbench.plugins.hunt.cover import cover_links

    if options.method == "groups":
        raise UsageError("--cover-links needs pairs, which --method groups does not measure: omit one of them")
    cover = cover_links(request.cover_links, place_hosts(about))
    crossed += [cover.sentence(), *cover.notes]
    options = replace(options, leaf_of=options.leaf_of or cover.leaf_of, cover=cover.pairs)
    return options, {"crossed": crossed, "uncovered": list(cover.uncovered)}


def _group_stage(source: str, options: Options, about: Mapping[str, Any]) -> GroupStage:
    """Return the stage of the plug-in groups. Raises UsageError without the plug-in, without pairs, and for an invalid source."""
    if options.method == "groups":
        raise UsageError("--groups needs pairs, which --method groups does not measure: omit one of them")
    makers = hooks_of("hunt_groups")
    if not makers:
        raise UsageError("--groups needs the plug-in 'groups', which this installation lacks: omit the option")
    stage: GroupStage = makers[0](source, place_hosts(about), node_names(about.get("nodes", ())), about.get("cliques"))
    return stage


def planned_stages(request: HuntRequest, placement: Placement) -> tuple[Places, Mapping[str, int], Mapping[str, Any]]:
    """Return the places of a hunt, the most rounds of each stage, and the results of a link file. Raises UsageError as a hunt does."""
    from collbench.plugins.hunt.strategy import stages

    places, _ = request.places(placement)
    about = {"places": list(places.names), "hosts": list(places.hosts), "ranks_per_place": places.width, "no_groups": None, "nics": []}
    options, crossed = options_of(request, about)
    return places, stages(places.n, options), crossed


def _stored(folder: Path, document: Mapping[str, Any]) -> Path:
    from collbench.plugins.hunt.recommendation import store

    try:
        return store(folder, document)
    except OSError as error:
        raise RunFailed(f"{folder}: cannot write recommendation.json ({error.strerror or error}): check the folder and its disk") from error


def _no_drain(request: HuntRequest, about: Mapping[str, Any], flags: Collection[str]) -> str:
    """Return why no node may be drained: the launch itself causes the slow ranks. "" if nodes may be drained."""
    if about["virtual"]:
        return f"backend {about['backend']} simulates its ranks"
    if request.launch.slowed:
        return "ranks were slowed on purpose (--slowed)"
    return next((why for flag, why in _NO_DRAIN_FLAGS.items() if flag in flags), "")
