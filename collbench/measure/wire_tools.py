"""Wire tools between ranks: the target's end waits, the source's end begins, every rank learns what came of it."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace

from collbench.addresses import LOOPBACK
from collbench.control.members import Member
from collbench.control.world import World
from collbench.errors import RunFailed, UsageError
from collbench.measure import counter_readings as counters
from collbench.measure import ethernet_counters, infiniband_counters
from collbench.measure.channels_between import COUNTED, PATIENCE_S, Told, attempt
from collbench.measure.process import Tool, free_port, once
from collbench.measure.registry import tools_named, version_here
from collbench.measure.tool import Ask, Figure, WireTool, last_words

THEIRS = "their_tool"  # the flag on every such row
FLAGS = (THEIRS, "unverified")
_MOST_NAMED = 4
_OF_THE_DEADLINE = 0.75  # who stands still for all of it is taken for a hang


@dataclass(frozen=True)
class Course:
    """From whom to whom one run goes."""

    source: Member
    target: Member

    @property
    def inside(self) -> bool:
        """Both are on one host: the tool goes over loopback there."""
        return self.source.host == self.target.host

    @property
    def address(self) -> str:
        """At which the target waits."""
        return LOOPBACK if self.inside else self.target.address


@dataclass(frozen=True)
class Ran:
    """What came of one run: a figure with the commands that made it, or why there is none.

    version     as the source's host has it
    other_path  whether bytes that had to leave the source's host are on none of its NICs
    left_bytes  payload that these counted meanwhile, whosever it was; None: not known
    """

    figure: Figure | None
    why: str | None
    server: str
    client: str
    version: str = ""
    other_path: bool = False
    left_bytes: int | None = None

    def evidence(self, tool: WireTool) -> dict[str, object]:
        """For the row."""
        told: dict[str, object] = {"name": tool.name, "version": self.version or None, "client": self.client, "server": self.server}
        if self.figure is None:
            return {"tool": told}
        return {"tool": {**self.figure.facts, **told}, "statistic": self.figure.statistic, "left_host_bytes": self.left_bytes}


@dataclass(frozen=True)
class Tools:
    """The tools of a launch, all installed wherever a rank is; versions: of each tool, by rank."""

    tools: Sequence[WireTool]
    versions: Mapping[str, Sequence[str]]


def tools_at_hand(world: World, names: Sequence[str]) -> Tools:
    """The tools that were asked for. All ranks call. Raises UsageError on all of them where one is not installed on a host."""
    tools = tools_named(names)
    if not tools:
        return Tools((), {})
    with world.watchdog.phase("asking tools for their versions"):
        mine = {tool.name: version_here(tool) for tool in tools}
    told = world.agree(mine, "asking tools for their versions")
    for tool in tools:
        lacking = dict.fromkeys(member.host for member in world.members if told[member.rank][tool.name] is None)
        if lacking:
            raise UsageError(f"--tools {tool.name}: it is not installed on {_some(list(lacking))}: {tool.package}")
    return Tools(tools, {tool.name: [str(each[tool.name]) for each in told] for tool in tools})


def run_tool(world: World, tool: WireTool, ask: Ask, courses: Sequence[Course], versions: Sequence[str]) -> list[Ran]:
    """One run per course, all at the same time; what came of each, at all ranks, which all call.

    A process that drives several ranks, and so is the source of several courses, begins one after the other.
    """
    limit_s = min(ask.seconds + PATIENCE_S, _OF_THE_DEADLINE * world.timeout_s)
    most_s = limit_s * (1 + max(Counter(each.source.rank for each in courses).values()))
    with ExitStack() as waiting, world.patient(most_s):
        mine = {str(at): _waits(tool, ask, each, waiting, (limit_s, most_s)) for at, each in enumerate(courses) if each.target == world.me}
        offers = _by_course(world.agree(mine, f"starting {tool.name}"))
        begun = {str(at): _begins(tool, ask, each, offers[str(at)], limit_s) for at, each in enumerate(courses) if each.source == world.me}
        told = _by_course(world.agree(begun, f"running {tool.name}"))
    came = [_came(tool, ask, each, offers[str(at)].get("value"), told[str(at)]) for at, each in enumerate(courses)]
    return [replace(ran, version=versions[each.source.rank]) for ran, each in zip(came, courses, strict=True)]


def _some(hosts: Sequence[str]) -> str:
    more = len(hosts) - _MOST_NAMED
    return ", ".join(hosts[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _by_course(told: Sequence[Mapping[str, Told]]) -> dict[str, Told]:
    return {at: each for one in told for at, each in one.items()}


def _waits(tool: WireTool, ask: Ask, course: Course, waiting: ExitStack, limits_s: tuple[float, float]) -> Told:
    """Starts the end that waits, which lives to the end of `waiting`; limits_s: until it listens, and until it ends. Gives its port."""

    def start() -> int:
        port = free_port(course.address)
        server = waiting.enter_context(Tool(tool.server(ask, course.address, port), limits_s[1]))
        server.await_listening(port, limits_s[0])
        return port

    return attempt(start)


def _begins(tool: WireTool, ask: Ask, course: Course, offer: Told, limit_s: float) -> Told:
    """What the client says, and the bytes that left this host meanwhile."""
    if "value" not in offer:
        return {"why": f"{course.target.host}: {offer.get('why')}"}

    def begin() -> dict[str, object]:
        """Runs the client to its end. Raises RunFailed where it fails."""
        before = counters.read()
        done = once(tool.client(ask, course.address, offer["value"]), limit_s)
        left = _left(before, counters.read())
        if done.code and not done.out:
            raise RunFailed(f"{tool.name} failed: {last_words(done.err)}")
        figure = tool.parse(ask, done.out)
        if done.code:
            raise RunFailed(f"{tool.name} failed with code {done.code}: {last_words(done.err or done.out)}")
        return {"figure": asdict(figure), "left": left}

    return attempt(begin)


def _left(before: counters.Counters, after: counters.Counters) -> int | None:
    """Bytes of payload that left this host by its NICs; None where these do not tell."""
    seen = counters.moved(before, after)
    if seen["silent"] or seen["came_or_went"] or not (seen["leaving"] or after.ports):
        return None
    parts = [ethernet_counters.payload(seen["interfaces"].get(name, {}), "tx") for name in seen["leaving"]]
    parts += [infiniband_counters.moved(seen["ports"].get(name, {}), "tx") for name in after.ports]
    return None if None in parts else sum(part for part in parts if part)


def _came(tool: WireTool, ask: Ask, course: Course, port: int | None, told: Told) -> Ran:
    server = shlex.join(tool.server(ask, course.address, port)) if port else ""
    client = shlex.join(tool.client(ask, course.address, port)) if port else ""
    said = told.get("value")
    if not said:
        return Ran(None, str(told.get("why", f"{tool.name} said nothing")), server, client)
    figure, left = Figure(**said["figure"]), said["left"]
    strayed = left is not None and not course.inside and left < COUNTED * figure.sent_bytes
    return Ran(figure, None, server, client, other_path=strayed, left_bytes=left)
