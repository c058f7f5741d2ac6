"""The autopsy of dumps: the rank and the cause of each fault, and no rank where the dumps do not show one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from collbench.errors import UsageError
from collbench.plugins.traces.autopsy import AutopsyCause, AutopsyFinding, AutopsyResult, AutopsyVerdict, autopsy
from collbench.plugins.traces.reading import read_traces
from tests.plugins.traces.dumps import Call, document, entries, write

STEP: list[Call] = [("all_reduce", 340), ("_all_gather_base", 12), ("all_reduce", 7)]
RECORDED = Path(__file__).parents[3] / "reports/hang-dumps"


def judged(
    folder: Path, by_rank: Mapping[int, Sequence[Mapping[str, Any]]], groups: Mapping[str, Sequence[int]] | None = None, **more: Any
) -> AutopsyVerdict:
    return autopsy(read_traces(write(folder, by_rank, groups)), **more)


def first(verdict: AutopsyVerdict) -> tuple[AutopsyCause, tuple[int, ...], int]:
    assert verdict.result is AutopsyResult.FOUND and verdict.exit_code == 1
    return verdict.findings[0].cause, verdict.culprits, verdict.findings[0].sequence


def waiting(call: Call, state: str = "started") -> Call:
    return call[0], call[1], state


WORLD = {"0": range(3)}


def test_a_healthy_job_has_no_finding(tmp_path: Path) -> None:
    verdict = judged(tmp_path, {rank: entries(STEP * 4) for rank in range(3)}, WORLD)
    assert (verdict.result, verdict.exit_code, verdict.findings, verdict.calls) == (AutopsyResult.NOTHING_FOUND, 0, (), 12)


def test_a_rank_that_did_not_arrive(tmp_path: Path) -> None:
    others = entries([*STEP * 2, waiting(STEP[0])])
    verdict = judged(tmp_path, {0: others, 1: entries(STEP * 2), 2: others}, WORLD)
    assert first(verdict) == (AutopsyCause.NOT_ARRIVED, (1,), 7)
    finding = verdict.findings[0]
    assert (finding.operation, finding.waiting, finding.members, finding.last) == ("allreduce", (0, 2), 3, "allreduce #6")


def test_a_recorded_job_of_gloo() -> None:
    verdict = autopsy(read_traces([RECORDED / f"dump_rank_{rank}" for rank in range(3)]))
    assert first(verdict) == (AutopsyCause.NOT_ARRIVED, (2,), verdict.findings[0].sequence)
    assert len(verdict.findings) == 1


def test_a_call_that_failed_at_gloo_is_one_at_which_a_rank_did_not_arrive(tmp_path: Path) -> None:
    calls: list[Call] = [("all_gather", 1, "retired"), *(waiting(call, "retired") for call in STEP)]
    others = entries([*calls, waiting(STEP[0], "retired")], library="gloo")
    verdict = judged(tmp_path, {0: others, 1: entries(calls, library="gloo")})
    assert first(verdict) == (AutopsyCause.NOT_ARRIVED, (1,), 5)


def test_a_rank_that_never_called_anything(tmp_path: Path) -> None:
    verdict = judged(tmp_path, {0: entries([waiting(STEP[0])]), 1: [], 2: entries([waiting(STEP[0])])}, WORLD)
    assert first(verdict) == (AutopsyCause.NOT_ARRIVED, (1,), 1)
    assert verdict.findings[0].last == ""


def test_a_rank_whose_buffer_was_overwritten_is_not_accused(tmp_path: Path) -> None:
    old = entries([("all_reduce", 4)] * 5, "1", "pair", begin=400)
    for entry in old:
        entry["record_id"] = 5000
    others = entries([waiting(("all_reduce", 4))], "0", begin=9)
    verdict = judged(tmp_path, {0: others, 1: old}, {"0": range(2), "1": range(2)})
    assert 1 not in verdict.culprits


class TestMissingDumps:
    def test_the_only_rank_without_a_dump_for_which_the_others_wait(self, tmp_path: Path) -> None:
        others = entries([*STEP, waiting(STEP[0])])
        verdict = judged(tmp_path, {0: others, 2: others}, WORLD)
        assert first(verdict) == (AutopsyCause.NO_DUMP, (1,), 4)
        assert verdict.absent == (1,)

    def test_of_two_ranks_without_a_dump_none_is_accused(self, tmp_path: Path) -> None:
        verdict = judged(tmp_path, {0: entries([*STEP, waiting(STEP[0])])}, WORLD)
        assert (verdict.result, verdict.exit_code, verdict.culprits) == (AutopsyResult.INCONCLUSIVE, 3, ())
        assert [(each.cause, each.ranks) for each in verdict.findings] == [(AutopsyCause.NO_DUMP, (1, 2))]

    def test_nothing_in_the_other_dumps_is_inconclusive(self, tmp_path: Path) -> None:
        verdict = judged(tmp_path, {0: entries(STEP), 2: entries(STEP)}, WORLD)
        assert (verdict.result, verdict.findings) == (AutopsyResult.INCONCLUSIVE, ())

    def test_the_number_of_ranks_can_be_given(self, tmp_path: Path) -> None:
        calls = {rank: entries(STEP, library="gloo") for rank in range(2)}
        for each in calls.values():
            del each[1]  # the all-gather, which has the number of ranks
        assert judged(tmp_path, calls).result is AutopsyResult.NOTHING_FOUND
        assert judged(tmp_path, calls, ranks=3).result is AutopsyResult.INCONCLUSIVE

    def test_a_rank_that_did_not_arrive_is_the_cause_also_if_another_dump_is_missing(self, tmp_path: Path) -> None:
        verdict = judged(tmp_path, {0: entries([*STEP, waiting(STEP[0])]), 1: entries(STEP)}, WORLD)
        assert first(verdict) == (AutopsyCause.NOT_ARRIVED, (1,), 4)

    def test_in_a_group_without_recorded_members_the_missing_rank_may_be_one(self, tmp_path: Path) -> None:
        pair = entries([waiting(("all_reduce", 9), "waiting")], "1", "undefined", library="gloo")
        whole = entries([("all_gather", 1, "retired"), ("all_reduce", 4, "retired")], library="gloo")
        for entry in whole:
            entry["output_sizes"] = [[3, *entry["output_sizes"][0][1:]]]
        late = entries([("all_reduce", 4, "waiting")], library="gloo", begin=3)
        verdict = judged(tmp_path, {0: [*whole, *pair], 2: [*whole, *late]})
        assert first(verdict) == (AutopsyCause.NO_DUMP, (1,), 1)

    def test_dumps_without_calls_are_inconclusive(self, tmp_path: Path) -> None:
        assert judged(tmp_path, {0: [], 1: []}, {"0": range(2)}).result is AutopsyResult.INCONCLUSIVE


class TestMismatch:
    @pytest.mark.parametrize(
        ("other", "cause"),
        [
            (("all_reduce", 8), AutopsyCause.SIZE), (("broadcast", 7), AutopsyCause.OPERATION), (("all_reduce", 340), AutopsyCause.AHEAD),
        ],
    )  # fmt: skip
    def test_the_minority_is_named(self, tmp_path: Path, other: Call, cause: AutopsyCause) -> None:
        right, wrong = (entries([*STEP * 3, *STEP[:2], waiting(call)]) for call in (STEP[2], other))
        assert first(judged(tmp_path, {0: right, 1: right, 2: wrong}, WORLD)) == (cause, (2,), 12)

    def test_another_data_type(self, tmp_path: Path) -> None:
        right, wrong = (entries([*STEP, waiting(STEP[0])]) for _ in range(2))
        wrong[3]["input_dtypes"] = ["Half"]
        assert first(judged(tmp_path, {0: right, 1: wrong, 2: right}, WORLD)) == (AutopsyCause.DTYPE, (1,), 4)

    def test_of_two_ranks_the_earlier_steps_show_which(self, tmp_path: Path) -> None:
        right, wrong = (entries([*STEP * 3, waiting(call)]) for call in (STEP[0], ("all_reduce", 341)))
        verdict = judged(tmp_path, {0: wrong, 1: right}, {"0": range(2)})
        assert first(verdict) == (AutopsyCause.SIZE, (0,), 10)
        assert verdict.findings[0].by_history

    def test_of_two_ranks_without_earlier_steps_none_is_accused(self, tmp_path: Path) -> None:
        verdict = judged(tmp_path, {0: entries([("all_reduce", 8)]), 1: entries([("all_reduce", 9)])}, {"0": range(2)})
        assert first(verdict) == (AutopsyCause.SIZE, (), 1)
        assert (verdict.findings[0].compared, verdict.findings[0].values) == ((0, 1), ("allreduce of 8 float32", "allreduce of 9 float32"))

    def test_a_skipped_call_and_an_additional_one(self, tmp_path: Path) -> None:
        whole: list[Call] = [("all_reduce", size) for size in (1, 2, 3, 4, 5, 6)]
        skips = entries([*whole[:2], *whole[3:]])
        adds = entries([*whole[:2], ("all_reduce", 9), *whole[2:]])
        right = entries(whole)
        assert first(judged(tmp_path, {0: right, 1: skips, 2: right}, WORLD)) == (AutopsyCause.SKIPPED, (1,), 3)
        assert first(judged(tmp_path, {0: right, 1: adds, 2: right}, WORLD)) == (AutopsyCause.ADDITIONAL, (1,), 3)

    def test_another_order(self, tmp_path: Path) -> None:
        right, wrong = entries(STEP), entries([STEP[0], STEP[2], STEP[1]])
        assert first(judged(tmp_path, {0: right, 1: wrong, 2: right}, WORLD)) == (AutopsyCause.ORDER, (1,), 2)

    def test_a_rank_that_ends_because_of_a_mismatch_is_not_accused(self, tmp_path: Path) -> None:
        right, wrong = entries([*STEP * 3, STEP[0]]), entries([*STEP * 3, ("all_reduce", 341), waiting(STEP[1])])
        verdict = judged(tmp_path, {0: right, 1: wrong}, {"0": range(2)})
        assert [(each.cause, each.ranks) for each in verdict.findings] == [(AutopsyCause.SIZE, (1,))]

    def test_a_hang_long_after_a_mismatch_has_its_own_cause(self, tmp_path: Path) -> None:
        late = waiting(("all_reduce", 340))
        first_rank, second, third = ([*STEP[:1], ("all_reduce", size), *STEP * 12] for size in (12, 12, 13))
        ranks = {0: entries(first_rank), 1: entries([*second, late]), 2: entries([*third, late])}
        found = judged(tmp_path, ranks, WORLD).findings
        assert [(each.cause, each.ranks) for each in found] == [(AutopsyCause.SIZE, (2,)), (AutopsyCause.NOT_ARRIVED, (0,))]

    def test_parts_of_an_uneven_alltoall_may_differ(self, tmp_path: Path) -> None:
        verdict = judged(tmp_path, {rank: entries([("all_to_all", 10 + rank)] * 3) for rank in range(3)}, WORLD)
        assert verdict.result is AutopsyResult.NOTHING_FOUND


PAIRS = {"0": range(4), "1": (0, 1), "2": (2, 3)}


class TestSeveralGroups:
    def test_the_cause_in_one_group_explains_the_others(self, tmp_path: Path) -> None:
        whole, pair = entries([("all_reduce", 4)] * 3), waiting(("all_reduce", 9))
        late = entries([waiting(("all_reduce", 4))], begin=4)
        ranks = {0: [*whole, *entries([pair], "1", "pair")], 1: whole, 2: [*whole, *late], 3: [*whole, *late]}
        verdict = judged(tmp_path, ranks, PAIRS)
        assert first(verdict)[:2] == (AutopsyCause.NOT_ARRIVED, (1,))
        assert all(finding.ranks == (1,) for finding in verdict.findings)

    def test_two_ranks_that_call_their_groups_in_different_orders(self, tmp_path: Path) -> None:
        one, other = (entries([waiting(("all_reduce", 4))], name, "") for name in "12")
        verdict = judged(tmp_path, {0: one, 1: other}, {"0": range(2), "1": range(2), "2": range(2)})
        assert first(verdict)[:2] == (AutopsyCause.CIRCLE, (0, 1))


def _message(name: str) -> list[dict[str, Any]]:
    return [{**entry, "is_p2p": True, "p2p_seq_id": 1} for entry in entries([(name, 4, "started")], "9", "pipeline")]


class TestMessages:
    GROUPS = (("0", (0, 1, 2)), ("9", (0, 1)))

    def test_a_rank_that_waits_for_a_message_is_not_the_cause(self, tmp_path: Path) -> None:
        late = entries([*STEP, waiting(STEP[0])])
        verdict = judged(tmp_path, {0: [*entries(STEP), *_message("recv 0<-1")], 1: entries(STEP), 2: late}, dict(self.GROUPS))
        assert first(verdict)[:2] == (AutopsyCause.NOT_ARRIVED, (1,))
        assert [finding.ranks for finding in verdict.findings] == [(1,)]

    def test_a_message_without_its_other_side(self, tmp_path: Path) -> None:
        verdict = judged(tmp_path, {0: _message("recv 0<-1"), 1: [], 2: []}, dict(self.GROUPS))
        assert first(verdict) == (AutopsyCause.NOT_ARRIVED, (1,), 1)
        assert (verdict.findings[0].operation, verdict.findings[0].waiting) == ("recv", (0,))

    def test_a_message_that_both_sides_called_is_no_cause(self, tmp_path: Path) -> None:
        verdict = judged(tmp_path, {0: _message("recv 0<-1"), 1: _message("send 1->0"), 2: []}, dict(self.GROUPS))
        assert verdict.culprits == ()


def test_if_all_have_arrived_no_rank_is_accused(tmp_path: Path) -> None:
    verdict = judged(tmp_path, {rank: entries([*STEP, waiting(STEP[0])]) for rank in range(3)}, WORLD)
    assert (verdict.result, verdict.culprits) == (AutopsyResult.INCONCLUSIVE, ())
    assert [finding.cause for finding in verdict.findings] == [AutopsyCause.NOTHING_MOVES]


def test_a_dump_that_is_older_than_the_others_is_not_judged(tmp_path: Path) -> None:
    late = entries(STEP * 2)
    for entry in late:
        entry["time_discovered_completed_ns"] = entry["time_created_ns"] + 1000
        entry["state"] = "completed"
    verdict = judged(tmp_path, {0: late, 1: entries(STEP), 2: late}, WORLD)
    assert (verdict.result, verdict.culprits) == (AutopsyResult.INCONCLUSIVE, ())
    assert [(finding.cause, finding.ranks) for finding in verdict.findings] == [(AutopsyCause.OLDER_DUMP, (1,))]


SIXTY: list[Call] = [("all_reduce", 4)] * 60


class TestSlow:
    def verdict(self, folder: Path, late: Mapping[int, float], every: int = 1) -> AutopsyVerdict:
        ranks = {}
        for rank in range(3):
            times = [call / 10 + (late.get(rank, 0) if call % every == 0 else 0) for call in range(len(SIXTY))]
            ranks[rank] = entries(SIXTY, times=times)
        return judged(folder, ranks, WORLD)

    def test_a_rank_that_is_late_at_each_call(self, tmp_path: Path) -> None:
        verdict = self.verdict(tmp_path, {2: 0.05})
        cause, ranks, _ = first(verdict)
        assert (cause, ranks) == (AutopsyCause.SLOW, (2,))
        finding = verdict.findings[0]
        assert (finding.late, finding.of_calls) == (60, 60)
        assert finding.lost_s == pytest.approx(3.0, rel=0.01) and finding.span_s == pytest.approx(5.95, rel=0.01)

    @pytest.mark.parametrize(("late", "every"), [(0.005, 1), (0.05, 10)], ids=["within the error of clocks", "a tenth of the calls"])
    def test_less_is_not_reported(self, tmp_path: Path, late: float, every: int) -> None:
        assert self.verdict(tmp_path, {2: late}, every).result is AutopsyResult.NOTHING_FOUND


def test_findings_are_values_that_survive_json() -> None:
    from collbench.reason import as_json, decode

    finding = AutopsyFinding(AutopsyCause.NOT_ARRIVED, (1,), "0", "default_pg", "allreduce", 7, (0, 2), 3)
    verdict = AutopsyVerdict(AutopsyResult.FOUND, (finding,), 3, True, 3, (), 1, 7)
    assert decode(as_json(verdict), AutopsyVerdict) == verdict


def _peer(name: str, elements: int = 4, state: str = "started") -> dict[str, Any]:
    """The entry of a single message in the default group, after all collectives of a rank."""
    (entry,) = entries([(name, elements, state)], times=[90.0])
    return {**entry, "record_id": 90, "is_p2p": True, "p2p_seq_id": 1}


class TestPending:
    """No verdict is "nothing found" while an operation is pending."""

    BEFORE: Sequence[Call] = [("all_reduce", 340)] * 3
    WAITS: Call = ("all_reduce", 340, "started")

    @pytest.mark.parametrize("message", ["send 0->1", "recv 0<-1"])
    def test_a_message_without_its_other_side_and_a_collective_are_a_circle(self, tmp_path: Path, message: str) -> None:
        others = entries([*self.BEFORE, self.WAITS])
        verdict = judged(tmp_path, {0: [*entries(self.BEFORE), _peer(message)], 1: others, 2: others}, WORLD)
        assert first(verdict)[:2] == (AutopsyCause.CIRCLE, (0, 1))

    def test_a_ring_of_sends_is_a_circle(self, tmp_path: Path) -> None:
        verdict = judged(tmp_path, {rank: [_peer(f"send {rank}->{(rank + 1) % 4}")] for rank in range(4)}, {"0": range(4)})
        assert first(verdict)[:2] == (AutopsyCause.CIRCLE, (0, 1, 2, 3))

    def test_a_message_that_both_sides_have_started_is_held(self, tmp_path: Path) -> None:
        verdict = judged(tmp_path, {0: [_peer("send 0->1")], 1: [_peer("recv 1<-0")]}, {"0": range(2)})
        assert (verdict.exit_code, [each.cause for each in verdict.findings]) == (3, [AutopsyCause.NOTHING_MOVES])

    def test_a_message_of_another_size(self, tmp_path: Path) -> None:
        verdict = judged(tmp_path, {0: [_peer("send 0->1", 5000)], 1: [_peer("recv 1<-0", 4000)]}, {"0": range(2)})
        assert (verdict.findings[0].cause, verdict.culprits, verdict.exit_code) == (AutopsyCause.SIZE, (), 1)

    @pytest.mark.parametrize("kind", ["broadcast", "gather"])
    def test_an_earlier_operation_that_some_have_completed_is_named_and_no_rank_accused(self, tmp_path: Path, kind: str) -> None:
        held, ahead = entries([*self.BEFORE, (kind, 9, "started")]), entries([*self.BEFORE, (kind, 9), self.WAITS])
        verdict = judged(tmp_path, {0: held, 1: held, 2: ahead}, WORLD)
        (finding,) = verdict.findings
        assert (finding.cause, finding.operation, finding.sequence, finding.waiting) == (AutopsyCause.PARTLY, kind, 4, (0, 1))
        assert (verdict.exit_code, verdict.culprits) == (3, ())

    def test_more_missing_ranks_than_waiting_ones_may_be_an_additional_call(self, tmp_path: Path) -> None:
        verdict = judged(tmp_path, {0: entries(self.BEFORE), 1: entries([*self.BEFORE, self.WAITS]), 2: entries(self.BEFORE)}, WORLD)
        (finding,) = verdict.findings
        assert (finding.cause, finding.ranks, finding.waiting) == (AutopsyCause.NOT_ARRIVED_OR_ADDITIONAL, (0, 2), (1,))
        assert (verdict.exit_code, verdict.culprits) == (1, ())

    def test_scheduled_beside_started_points_at_the_gpu_of_that_rank(self, tmp_path: Path) -> None:
        others, late = (entries([*self.BEFORE, ("all_reduce", 340, state)]) for state in ("started", "scheduled"))
        assert first(judged(tmp_path, {0: others, 1: others, 2: late}, WORLD)) == (AutopsyCause.NOT_STARTED, (2,), 4)

    def test_a_group_without_recorded_members_is_not_complete(self, tmp_path: Path) -> None:
        whole = entries([("all_reduce", 4, "retired")], library="gloo")
        pair = entries([("all_reduce", 9, "waiting")], "1", "undefined", library="gloo")
        verdict = judged(tmp_path, {0: [*whole, *pair], 1: [*whole, *pair], 2: whole})
        assert (verdict.exit_code, [each.cause for each in verdict.findings]) == (3, [AutopsyCause.NO_MEMBERS])

    def test_messages_of_a_batch_have_the_state_of_the_batch(self, tmp_path: Path) -> None:
        batch = [{**entry, "state": "scheduled", "retired": False} for entry in (_peer("send 0->1"), _peer("recv 0<-1"))]
        other = [{**batch[0], "profiling_name": "nccl:recv 1<-0"}, {**batch[1], "profiling_name": "nccl:send 1->0"}]
        ends = {state: {**_peer("coalesced", 0, state), "p2p_seq_id": 1} for state in ("completed", "started")}
        done = {0: [*batch, ends["completed"]], 1: [*other, ends["completed"]]}
        assert (
            judged(
                tmp_path, {**done, 0: [*entries(self.BEFORE), *done[0]], 1: [*entries(self.BEFORE), *done[1]]}, {"0": range(2)}
            ).exit_code
            == 0
        )
        pending = {0: [*entries(self.BEFORE), *batch, ends["started"]], 1: entries(self.BEFORE)}
        assert first(judged(tmp_path, pending, {"0": range(2)}))[:2] == (AutopsyCause.NOT_ARRIVED, (1,))


def test_the_status_of_groups_shows_what_ranks_without_entries_have_called(tmp_path: Path) -> None:
    pending = {0: (11, 10, (11,)), 1: (11, 10, (11,)), 2: (10, 7, (8, 9, 10)), 3: (10, 10, ())}
    paths = []
    for rank, (called, completed, numbers) in pending.items():
        calls = [entries([("all_reduce", 4, "scheduled")], begin=number)[0] for number in numbers]
        dump = document(calls, {"0": range(4)})
        dump["pg_status"] = {"0": {"last_enqueued_collective": called, "last_completed_collective": completed}}
        paths.append(tmp_path / f"rank_{rank}")
        paths[-1].write_text(json.dumps(dump), encoding="utf-8")
    verdict = autopsy(read_traces(paths))
    assert verdict.culprits == (2, 3)
    assert (verdict.findings[0].sequence, verdict.findings[0].called, verdict.findings[0].completed) == (11, 10, 7)


@pytest.mark.parametrize("size", [0, 9, 300])
def test_a_cut_dump_is_named_and_the_others_are_analysed(tmp_path: Path, size: int) -> None:
    paths = write(tmp_path, {rank: entries([*STEP, waiting(STEP[0])]) for rank in range(3)}, WORLD)
    paths[2].write_bytes(paths[2].read_bytes()[:size])
    verdict = autopsy(read_traces(paths, without_damaged=True))
    assert first(verdict) == (AutopsyCause.NO_DUMP, (2,), 4)
    assert [(file.file, file.rank) for file in verdict.damaged] == [(str(paths[2]), 2)]
    with pytest.raises(UsageError):
        read_traces(paths)
