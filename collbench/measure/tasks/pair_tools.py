"""What other tools say of the pairs, beside ours: in the rounds of the matrix, each way, after it, as rows of theirs.

The rows stand in tools.jsonl, apart from what we measured: nothing that judges reads them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from collbench.errors import UsageError
from collbench.measure.launch import members_of
from collbench.measure.tasks.pair_match import Match
from collbench.measure.tool import LATENCY, Ask, WireTool
from collbench.measure.wire import FLAGS, Course, Ran, Tools, run_tool, tools_at_hand
from collbench.operations.groups import Pair
from collbench.results.folder import TOOLS
from collbench.results.row import Row, Times

_INSIDE: tuple[dict[str, str], dict[str, str]] = ({}, {"path": "loopback: both are on one host"})
_AT_ONCE: tuple[tuple[str, ...], tuple[str, ...]] = ((), ("pairs_at_once",))
_STRAYED: tuple[tuple[str, ...], tuple[str, ...]] = ((), ("other_path",))


def tools_of(match: Match) -> Tools:
    """The tools that were asked for. All ranks call. Raises UsageError where one is missing, or the places are made up."""
    asked = match.asked.tools
    if asked and match.backend.virtual:
        raise UsageError(f"--tools {','.join(asked)} needs real hosts, and {match.backend.name} makes them up: choose another --backend")
    return tools_at_hand(match.launch.world, asked)


def beside(match: Match, tools: Tools) -> None:
    """Runs the tools round by round, at all ranks, until all pairs that were measured have been met or --budget is used up once more."""
    if not tools.tools:
        return
    world, began = match.launch.world, time.monotonic()
    match.note(f"beside ours, each way between the same pairs: {', '.join(_named(tools, tool) for tool in tools.tools)}")
    done, rounds = 0, list(match.plan.rounds())[: world.decide(_rounds(match), "choosing the tools' rounds")]
    for number, pairs in enumerate(rounds):
        spent_s = world.decide(time.monotonic() - began, "running the next tools")
        if number and spent_s > match.asked.budget_s:
            break
        for row in _of_round(match, tools, pairs):
            _keep(match, row)
        done += len(pairs)
        if match.listener:
            each_s = (time.monotonic() - began) / (number + 1)
            match.listener.round(number + 1, len(rounds), len(pairs), each_s * (len(rounds) - number - 1))
    left = sum(map(len, rounds)) - done
    if left:
        match.note(f"the tools ran between {done} of {done + left} pairs: --budget is used up, raise it to run them between more")


def _named(tools: Tools, tool: WireTool) -> str:
    versions = " and ".join(dict.fromkeys(each for each in tools.versions[tool.name] if each))
    return f"{tool.name} {versions}".strip()


def _rounds(match: Match) -> int:
    """How many rounds of the plan were played: rank 0's."""
    return len({one.round for one in match.rounds if not one.again})


def _of_round(match: Match, tools: Tools, pairs: Sequence[Pair]) -> Iterator[Row]:
    members = members_of(match.backend, match.launch.world)
    firsts = [ranks[0] for ranks in match.places.ranks]
    for tool in tools.tools:
        for ask in _asks(match, tool):
            for ways in (pairs, [(b, a) for a, b in pairs]):
                courses = [Course(members[firsts[a]], members[firsts[b]]) for a, b in ways]
                found = run_tool(match.launch.world, tool, ask, courses, tools.versions[tool.name])
                for (a, b), course, ran in zip(ways, courses, found, strict=True):
                    row = _row(tool, ask, course, ran)
                    around = {"from": match.places.names[a], "to": match.places.names[b], **_INSIDE[course.inside]}
                    yield replace(row, group=f"{firsts[a]}-{firsts[b]}", flags=(*row.flags, *_AT_ONCE[len(pairs) > 1]),
                                  evidence={**row.evidence, **around})  # fmt: skip


def _asks(match: Match, tool: WireTool) -> list[Ask]:
    asked, budget = match.asked, match.asked.launch.budget
    seconds = min(budget.max_time_s, match.launch.world.timeout_s / 2)  # a tool shows no progress while it runs
    sizes = {operation: asked.latency_size_bytes if operation == LATENCY else asked.size_bytes for operation in tool.operations}
    return [Ask(operation, size, seconds) for operation, size in sizes.items()]


def _row(tool: WireTool, ask: Ask, course: Course, ran: Ran) -> Row:
    """The row of one run, which does not say yet between which places it was."""
    time_s = ran.figure.time_s if ran.figure else None
    rate = ask.size_bytes / time_s if time_s else None
    return Row(
        ask.operation, tool.name, tool.api, "cpu", "uint8", None, None, "batched", False, "fixed", "all", None,
        ask.size_bytes, ask.size_bytes, 2, 1 if course.inside else 2, na=ran.why, n=ran.figure.n if ran.figure else 0,
        time_s=Times(time_s, None, None, None, None, None, None) if time_s else None,
        algbw_bytes_per_s=rate, busbw_bytes_per_s=rate, flags=(*FLAGS, *_STRAYED[ran.other_path]),
        evidence=ran.evidence(tool),
    )  # fmt: skip


def _keep(match: Match, row: Row) -> None:
    if row.na and all(row.na != other.na for other in match.theirs):
        match.note(f"{row.backend} from {row.evidence['from']} to {row.evidence['to']}: {row.na}")
    if match.launch.folder:
        match.launch.folder.append_round(row.as_json(), TOOLS)
    match.theirs.append(row)
