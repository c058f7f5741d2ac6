"""Verdicts and findings of an autopsy."""

from __future__ import annotations

from collbench.plugins.traces.autopsy import AutopsyCause, AutopsyFinding, AutopsyResult, AutopsyVerdict
from collbench.plugins.traces.model import DamagedFile

_PLACES = {"place": "train.py:41 (step)", "waits_at": "train.py:52 (metrics)"}
_VALUES = {"values": ("allreduce of 340 float32", "allreduce of 12 float32", "allreduce of 340 float32"), "compared": (0, 1, 2)}


def _finding(cause: AutopsyCause, *ranks: int, waiting: tuple[int, ...] = (0, 2), **more: object) -> AutopsyFinding:
    return AutopsyFinding(cause, ranks, "0", "default_pg", "allreduce", 7, waiting, 3, **more)  # type: ignore[arg-type]


def _verdict(result: AutopsyResult, *findings: AutopsyFinding, absent: tuple[int, ...] = (), known: bool = True) -> AutopsyVerdict:
    return AutopsyVerdict(result, findings, 3, known, 3 - len(absent), absent, 2, 1)


_ARRIVED = _finding(AutopsyCause.NOT_ARRIVED, 1, last="allgather #6", **_PLACES)
_SEND = AutopsyFinding(
    AutopsyCause.NOT_ARRIVED, (1,), "9", "pipeline", "send", 5, (0,), 2, last="recv #3", peer=1, values=(), compared=(),
)  # fmt: skip
MESSAGES = {
    "message not received": _SEND,
    "message of another size": AutopsyFinding(
        AutopsyCause.SIZE,
        (),
        "9",
        "pipeline",
        "send",
        5,
        (0, 1),
        2,
        ("send of 5,000 float32", "recv of 4,000 float32"),
        (0, 1),
        peer=1,
    ),
    "circle of messages": AutopsyFinding(
        AutopsyCause.CIRCLE,
        (0, 1),
        "9",
        "pipeline",
        "send",
        5,
        (0,),
        2,
        ("send to rank 1", "allreduce #7 of group 0"),
        (0, 1),
        peer=1,
    ),
    "did not arrive, GPU behind": _finding(AutopsyCause.NOT_ARRIVED, 1, last="allreduce #6", called=6, completed=3),
    "did not arrive, calls not in the dump": _finding(AutopsyCause.NOT_ARRIVED, 1, last="#6", called=6, completed=6),
    "did not arrive or additional": _finding(AutopsyCause.NOT_ARRIVED_OR_ADDITIONAL, 0, 2, waiting=(1,), last="allreduce #6"),
    "called, not started": _finding(AutopsyCause.NOT_STARTED, 1, called=7, completed=5),
    "completed at some ranks": _finding(AutopsyCause.PARTLY, waiting=(0, 1), compared=(2,)),
    "members not recorded": _finding(AutopsyCause.NO_MEMBERS, waiting=(0, 1)),
    "not recorded": _finding(AutopsyCause.NOT_SHOWN, 1),
    "damaged file": DamagedFile("dumps/rank_3", "it is incomplete", 3),
    "did not arrive": _ARRIVED,
    "two did not arrive": _finding(AutopsyCause.NOT_ARRIVED, 1, 2, waiting=(0,)),
    "no dump": _finding(AutopsyCause.NO_DUMP, 1, waits_at="train.py:52 (metrics)"),
    "two without a dump": _finding(AutopsyCause.NO_DUMP, 1, 2, waiting=(0,)),
    "skipped": _finding(AutopsyCause.SKIPPED, 1, **_VALUES, **_PLACES),
    "additional": _finding(AutopsyCause.ADDITIONAL, 1, **_VALUES),
    "ahead": _finding(AutopsyCause.AHEAD, 1, **_VALUES),
    "order": _finding(AutopsyCause.ORDER, 1, **_VALUES),
    "operation": _finding(AutopsyCause.OPERATION, 1, **_VALUES),
    "size": _finding(AutopsyCause.SIZE, 1, **_VALUES),
    "size, by earlier steps": _finding(AutopsyCause.SIZE, 1, **_VALUES, by_history=True),
    "data type": _finding(AutopsyCause.DTYPE, 1, **_VALUES),
    "size, no rank": _finding(AutopsyCause.SIZE, **_VALUES),
    "order, no rank": _finding(AutopsyCause.ORDER, **_VALUES),
    "circle": _finding(
        AutopsyCause.CIRCLE, 0, 1, waiting=(0,), values=("allreduce #7 of group 0", "allreduce #1 of group 1"), compared=(0, 1)
    ),
    "nothing moves": _finding(AutopsyCause.NOTHING_MOVES, waiting=(0, 1, 2)),
    "older dump": _finding(AutopsyCause.OLDER_DUMP, 1),
    "slow": AutopsyFinding(AutopsyCause.SLOW, (1,), "0", members=3, late=41, of_calls=60, lost_s=1.234, span_s=10.5),
    "verdict: nothing found": _verdict(AutopsyResult.NOTHING_FOUND),
    "verdict: nothing found, ranks unknown": _verdict(AutopsyResult.NOTHING_FOUND, known=False),
    "verdict: found": _verdict(AutopsyResult.FOUND, _ARRIVED),
    "verdict: inconclusive": _verdict(AutopsyResult.INCONCLUSIVE, _finding(AutopsyCause.NOTHING_MOVES, waiting=(0, 1, 2))),
    "verdict: a dump is missing": _verdict(AutopsyResult.INCONCLUSIVE, absent=(1,)),
}
