"""What a replay assumes, leaves out and chooses of a trace."""

from __future__ import annotations

from collbench.plugins.traces import recording

MESSAGES = {
    "default used": recording.DefaultUsed("reduction op", "sum", 12),
    "left out: unsupported": recording.OperationsLeftOut("unsupported", 3),
    "left out: without data": recording.OperationsLeftOut("empty", 1),
    "left out: groups of one rank": recording.OperationsLeftOut("alone", 2),
    "left out: incomplete": recording.OperationsLeftOut("incomplete", 4),
    "a recorded step": recording.StepChosen("recorded", 2, 10),
    "an exact repetition": recording.StepChosen("repeated", 4, 9),
    "no steps": recording.StepChosen("whole", 0, 1),
    "the whole trace, as requested": recording.StepChosen("all", 0, 1),
    "no times": recording.OverlapNotRecorded(2),
    "gaps as computing": recording.ComputeFromGaps(),
    "ranks without a trace": recording.RanksAbsent((1, 3)),
    "many ranks without a trace": recording.RanksAbsent(tuple(range(20, 40))),
    "groups without ranks": recording.GroupsUnknown(2),
    "groups without names": recording.GroupsMixed("chakra", "flight-recorder"),
    "one file of another format": recording.FilesIgnored(("job/dump_rank_0",), 0),
    "many files of other formats": recording.FilesIgnored(("job/kineto/rank_0.json", "job/kineto/rank_1.json"), 6),
    "fewer ranks": recording.ShrunkTo(64, 8, 16, 2, 4),
}
