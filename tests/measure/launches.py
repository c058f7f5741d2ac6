"""Launches of virtual ranks in this process, for every kind of task: a listener that records, and simulated backends with faults."""

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from collbench.backends.simulated import SimulatedBackend
from collbench.control.world import World
from collbench.errors import CollbenchError
from collbench.launch.info import LaunchInfo
from collbench.measuring.session import Task, run_task

ALONE = LaunchInfo("local", 0, 1, 0, 1, "ipc://", "alone")
SPOILT = "rank 3: 7 wrong elements, first at 0: wanted 1, got 0"


class RecordingListener:
    """Records everything that a listener receives; `records` with the place of each."""

    def __init__(self) -> None:
        self.plan_of_launch: Any = None
        self.statuses: list[str] = []
        self.left: list[float | None] = []
        self.titles: list[tuple[str, int, int | None]] = []
        self.records: list[tuple[int | None, Any]] = []
        self.notes: list[str] = []
        self.ended = False

    def begin(self, plan: Any, folder: str) -> None:
        self.plan_of_launch, self.folder = plan, folder

    def status(self, text: str, left_s: float | None = None) -> None:
        self.statuses.append(text)
        self.left.append(left_s)

    def progress(self, title: str, done: int, total: int | None, eta_s: float | None) -> None:
        self.titles.append((title, done, total))

    def record(self, record: Any, place: int | None) -> None:
        self.records.append((place, record))

    def note(self, sentence: str) -> None:
        self.notes.append(sentence)

    def end(self) -> None:
        self.ended = True

    @property
    def in_order(self) -> list[Any]:
        return [record for _, record in sorted(self.records, key=lambda pair: pair[0] or 0)]


def run_alone(task_of: Callable[[Any], Task], request: Any, listener: Any = None) -> int:
    """Return the exit code of a launch of one process, which `ended` received as well. request: of the launch, or one that contains it."""
    codes, world = list[int](), World(ALONE, 10.0)
    try:
        code = run_task(task_of(request), getattr(request, "launch", request), world, listener, codes.append)
    finally:
        world.close()
    assert codes == [code]
    return code


class Careless(SimulatedBackend):
    """Spoils what rank 3 receives from rank 0."""

    def bind(self, operation: Any, case: Any, group: Any, buffers: Any) -> Any:
        program = super().bind(operation, case, group, buffers)
        if group.ranks != (0, 3) or operation.name != "p2p_bandwidth":
            return program
        (call,) = program.slots[0]

        def spoil() -> None:
            call.function()
            buffers.recv(1, 0)[:7] ^= 1

        return replace(program, slots=((replace(call, function=spoil),),))


class Fussy(SimulatedBackend):
    """Rejects groups with rank 2, and messages between ranks 1 and 2."""

    def group(self, ranks: Any, tuning: Any = None) -> Any:
        if 2 in ranks and len(ranks) < self.ranks:
            raise CollbenchError("no group for rank 2")
        return super().group(ranks, tuning)

    def pair(self, whole: Any, ranks: Any, case: Any) -> Any:
        if set(ranks) == {1, 2}:
            raise CollbenchError("ranks 1 and 2 are disconnected")
        return super().pair(whole, ranks, case)
