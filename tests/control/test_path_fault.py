"""From reports of connections and probes to the fault of a path."""

import pytest

from collbench.control.diagnosis import HangCause, HangEvidence, RankState, diagnose
from collbench.control.path import PathEvidence, PathFault, PathProblem, PathReport, ProbeResult, directions

HOSTS = {"10.0.0.1": "n1", "10.0.0.2": "n2"}
QUIET = PathReport("10.0.0.2", 0, 0, 1500, 0, 5, 40)
STALLED = PathReport("10.0.0.2", 1, 4, 1500, 3, 7, 40)  # seen at a hole of 1,000 bytes, five seconds after it opened
LOSSY = PathReport("10.0.0.2", 0, 0, 1500, 12, 41, 40)
DEAF = PathReport("10.0.0.2", 3, 4, 1500, 3, 3, 800)
HOLE = ProbeResult((576, 1000), (1200, 1280, 1500, 1500))
WARM = "allreduce 64 MiB on mpi: warm-up"


def fault(report, probe=None, answering=("n1", "n2")):
    probes = {("n1", "n2"): probe} if probe else {}
    return PathEvidence(directions([("n1", report)], HOSTS), probes, answering).fault()


BOTH_ANSWER = ("n1", "n2")


def resent(again, sent):
    return PathReport("10.0.0.2", 0, 0, 1500, again, sent, 40)


@pytest.mark.parametrize(("report", "probe", "answering", "problem"), [
    (QUIET, None, BOTH_ANSWER, None), (STALLED, HOLE, BOTH_ANSWER, PathProblem.MTU),
    (STALLED, ProbeResult((576, 1000, 1500), ()), BOTH_ANSWER, PathProblem.STALLED),
    (STALLED, ProbeResult((576, 1400), (1200, 1500)), BOTH_ANSWER, PathProblem.STALLED),
    (STALLED, None, BOTH_ANSWER, PathProblem.STALLED),  # of one packet sent again and again no rate follows
    (LOSSY, None, BOTH_ANSWER, PathProblem.LOSS), (LOSSY, HOLE, BOTH_ANSWER, PathProblem.MTU), (DEAF, None, ("n1",), PathProblem.ONE_WAY),
    (DEAF, None, BOTH_ANSWER, PathProblem.STALLED), (resent(2, 41), None, BOTH_ANSWER, None),
    (resent(3, 41), None, BOTH_ANSWER, PathProblem.LOSS), (resent(7, 10), None, BOTH_ANSWER, PathProblem.LOSS),
    (resent(8, 10), None, BOTH_ANSWER, None),  # where nearly all packets are lost it is not chance
])  # fmt: skip
def test_which_problem(report, probe, answering, problem):
    found = fault(report, probe, answering)
    assert (found.problem if found else None) == problem


@pytest.mark.parametrize(("probe", "answering", "known"), [
    (ProbeResult(), ("n1", "n2"), True),  # nothing passes to n2, and its answers arrive
    (ProbeResult((576, 1000, 1500), ()), ("n1", "n2"), False),  # some acknowledgements may be lost on the way back
    (ProbeResult((576, 1400), (1200, 1500)), ("n1", "n2"), False), (None, ("n1", "n2"), False),
])  # fmt: skip
def test_the_direction_of_a_stalled_path_is_known_only_if_nothing_passes(probe, answering, known):
    found = fault(STALLED, probe, answering)
    assert found and found.direction_known is known
    assert ("between n1 and n2" in found.render()) is not known


@pytest.mark.parametrize(("back", "known"), [
    (resent(0, 40), True), (resent(3, 40), True),  # acknowledgements of what did arrive were lost
    (resent(4, 40), False), (resent(36, 40), False), (PathReport("10.0.0.1", 1, 9, 1500, 9, 10, 40), False),
])  # fmt: skip
def test_the_direction_of_loss_is_known_only_if_the_other_one_loses_at_most_half_as_much(back, known):
    reports = {("n1", "n2"): resent(6, 40), ("n2", "n1"): back}
    found = PathEvidence(reports).fault()
    assert found and (found.problem, found.source, found.direction_known) == (PathProblem.LOSS, "n1", known)
    assert ("packets between n1 and n2 are lost" in found.render()) is not known


def test_a_host_without_a_loopback_interface_is_the_cause_before_a_rank_that_is_behind():
    path = PathEvidence({("n1", "n2"): LOSSY}, loopback_down=["n1"]).fault()
    assert path == PathFault(PathProblem.LOOPBACK, "n1", "n1")
    found = diagnose(evidence({0: RankState(0, WARM), 1: RankState(1, WARM, waits=True, step=1)}, path))
    assert (found.cause, found.ranks, found.path) == (HangCause.PATH, (), path)


def evidence(ranks, path, **more):
    names = {rank: f"rank {rank} (n{rank + 1}, pid {rank})" for rank in range(2)}
    return HangEvidence(WARM, 60.0, names, ranks, hosts={0: "n1", 1: "n2"}, path=path, **more)


def test_a_rank_that_is_behind_because_its_packets_are_lost_is_not_named():
    ranks = {0: RankState(0, "gathering", waits=True, step=9), 1: RankState(1, WARM, step=8)}
    found = diagnose(evidence(ranks, fault(STALLED, HOLE)))
    assert (found.cause, found.ranks) == (HangCause.PATH, ())
    assert found.path and (found.path.problem, found.path.limit_bytes, found.path.source, found.path.target) == (
        PathProblem.MTU, 1000, "n1", "n2",
    )  # fmt: skip
    assert diagnose(evidence(ranks, None)).ranks == (1,)


def test_of_a_silent_rank_on_another_host_no_more_is_concluded_than_that_no_answer_came():
    found = diagnose(evidence({0: RankState(0, WARM)}, None))
    assert (found.cause, found.ranks, found.source, found.target) == (HangCause.NO_ANSWER, (1,), "n2", "n1")


CUT = {"unreachable": frozenset({1}), "elsewhere": {1: "10.9.0.2"}}


@pytest.mark.parametrize(("path", "more", "cause"), [
    (fault(STALLED, HOLE), {}, HangCause.PATH),  # a hole explains silence
    (fault(STALLED), {}, HangCause.NO_ANSWER),  # a stall alone does not
    (PathFault(PathProblem.STALLED, "n1", "n2", stalled=1), CUT, HangCause.CONTROL_LOST),
    (PathFault(PathProblem.STALLED, "n1", "n2", stalled=2), CUT, HangCause.PATH),  # data are lost as well
    (fault(STALLED, HOLE), {"gone": [1]}, HangCause.ENDED),  # of whatever a path does
    (fault(STALLED, HOLE), {"held": frozenset({1})}, HangCause.STOPPED),
])  # fmt: skip
def test_the_cause_of_silence_on_a_faulty_path(path, more, cause):
    assert diagnose(evidence({0: RankState(0, WARM)}, path, **more)).cause is cause


def test_the_worst_direction_comes_first():
    each = {"b": (1, 3), "c": (3, 0), "d": (0, 50), "e": (0, 0)}
    found = PathEvidence({("a", host): PathReport(host, stalled, 0, 0, again, 0, 0) for host, (stalled, again) in each.items()}).suspects
    assert found == [("a", "c"), ("a", "b"), ("a", "d")]
