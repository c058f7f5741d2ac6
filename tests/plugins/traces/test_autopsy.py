"""The autopsy of dumps: the rank and the cause of each fault, and no rank where the dumps do not show one."""

import json
from pathlib import Path

import pytest

from collbench.errors import UsageError
from collbench.plugins.traces.autopsy import AutopsyCause, AutopsyFinding, AutopsyResult, AutopsyVerdict, autopsy
from collbench.plugins.traces.reading import read_traces
from collbench.reason import as_json, decode
from tests.plugins.traces.dumps import document, entries, write

STEP = [("all_reduce", 340), ("_all_gather_base", 12), ("all_reduce", 7)]
RECORDED = Path(__file__).parents[3] / "reports/hang-dumps"
WORLD, TWO = {"0": range(3)}, {"0": range(2)}
PIPELINE = {"0": range(3), "9": (0, 1)}
WAITS = ("all_reduce", 340, "started")
BEFORE = [("all_reduce", 340)] * 3
SIX = [("all_reduce", size) for size in (1, 2, 3, 4, 5, 6)]
PAIRS = {"0": range(4), "1": (0, 1), "2": (2, 3)}
SIXTY = [("all_reduce", 4)] * 60


def judged(folder, by_rank, groups=None, **more):
    return autopsy(read_traces(write(folder, by_rank, groups)), **more)


def first(verdict):
    assert verdict.result is AutopsyResult.FOUND and verdict.exit_code == 1
    return verdict.findings[0].cause, verdict.culprits, verdict.findings[0].sequence


def waiting(call, state="started"):
    return call[0], call[1], state


def message(name):
    """The entry of a message in a group of its own."""
    return [{**entry, "is_p2p": True, "p2p_seq_id": 1} for entry in entries([(name, 4, "started")], "9", "pipeline")]


def peer(name, elements=4, state="started"):
    """The entry of a single message in the default group, after all collectives of a rank."""
    (entry,) = entries([(name, elements, state)], times=[90.0])
    return {**entry, "record_id": 90, "is_p2p": True, "p2p_seq_id": 1}


def with_third(right, wrong):
    return {0: entries(right), 1: entries(right), 2: entries(wrong)}


def steps(last):
    return [*STEP * 3, *STEP[:2], waiting(last)]


HALF = entries([*STEP, waiting(STEP[0])])
HALF[3]["input_dtypes"] = ["Half"]
FAILED = [("all_gather", 1, "retired"), *(waiting(call, "retired") for call in STEP)]
WAITING = entries([*STEP, waiting(STEP[0])])
CAUSES = {
    "a call that failed at gloo": (
        {0: entries([*FAILED, waiting(STEP[0], "retired")], library="gloo"), 1: entries(FAILED, library="gloo")},
        None, (AutopsyCause.NOT_ARRIVED, (1,), 5),
    ),
    "the only rank without a dump": ({0: WAITING, 2: WAITING}, WORLD, (AutopsyCause.NO_DUMP, (1,), 4)),
    "not arrived beside a missing dump": ({0: WAITING, 1: entries(STEP)}, WORLD, (AutopsyCause.NOT_ARRIVED, (1,), 4)),
    "another size": (with_third(steps(STEP[2]), steps(("all_reduce", 8))), WORLD, (AutopsyCause.SIZE, (2,), 12)),
    "another operation": (with_third(steps(STEP[2]), steps(("broadcast", 7))), WORLD, (AutopsyCause.OPERATION, (2,), 12)),
    "a step ahead": (with_third(steps(STEP[2]), steps(("all_reduce", 340))), WORLD, (AutopsyCause.AHEAD, (2,), 12)),
    "another data type": ({0: WAITING, 1: HALF, 2: WAITING}, WORLD, (AutopsyCause.DTYPE, (1,), 4)),
    "a skipped call": (with_third(SIX, [*SIX[:2], *SIX[3:]]), WORLD, (AutopsyCause.SKIPPED, (2,), 3)),
    "an additional call": (with_third(SIX, [*SIX[:2], ("all_reduce", 9), *SIX[2:]]), WORLD, (AutopsyCause.ADDITIONAL, (2,), 3)),
    "another order": (with_third(STEP, [STEP[0], STEP[2], STEP[1]]), WORLD, (AutopsyCause.ORDER, (2,), 2)),
    "scheduled beside started": (
        with_third([*BEFORE, WAITS], [*BEFORE, ("all_reduce", 340, "scheduled")]), WORLD, (AutopsyCause.NOT_STARTED, (2,), 4),
    ),
    "groups in different orders": (
        {rank: entries([waiting(("all_reduce", 4))], str(rank + 1), "") for rank in range(2)},
        {name: range(2) for name in "012"}, (AutopsyCause.CIRCLE, (0, 1)),
    ),
    "a ring of sends": (
        {rank: [peer(f"send {rank}->{(rank + 1) % 4}")] for rank in range(4)}, {"0": range(4)}, (AutopsyCause.CIRCLE, (0, 1, 2, 3)),
    ),
    **{
        f"{kind} without its other side and a collective": (
            {0: [*entries(BEFORE), peer(kind)], 1: entries([*BEFORE, WAITS]), 2: entries([*BEFORE, WAITS])},
            WORLD, (AutopsyCause.CIRCLE, (0, 1)),
        )
        for kind in ("send 0->1", "recv 0<-1")
    },
}  # fmt: skip


@pytest.mark.parametrize(("by_rank", "groups", "cause"), CAUSES.values(), ids=CAUSES)
def test_rank_and_cause_of_a_fault(by_rank, groups, cause, tmp_path):
    assert first(judged(tmp_path, by_rank, groups))[: len(cause)] == cause


def test_without_a_fault_or_with_old_or_overwritten_dumps_no_rank_is_accused(tmp_path):
    verdict = judged(tmp_path, {rank: entries(STEP * 4) for rank in range(3)}, WORLD)
    assert (verdict.result, verdict.exit_code, verdict.findings, verdict.calls) == (AutopsyResult.NOTHING_FOUND, 0, (), 12)
    verdict = judged(tmp_path, {rank: entries([*STEP, waiting(STEP[0])]) for rank in range(3)}, WORLD)
    assert (verdict.result, verdict.culprits) == (AutopsyResult.INCONCLUSIVE, ())
    assert [finding.cause for finding in verdict.findings] == [AutopsyCause.NOTHING_MOVES]
    late = entries(STEP * 2)
    for entry in late:
        entry["time_discovered_completed_ns"] = entry["time_created_ns"] + 1000
        entry["state"] = "completed"
    verdict = judged(tmp_path, {0: late, 1: entries(STEP), 2: late}, WORLD)
    assert (verdict.result, verdict.culprits) == (AutopsyResult.INCONCLUSIVE, ())
    assert [(finding.cause, finding.ranks) for finding in verdict.findings] == [(AutopsyCause.OLDER_DUMP, (1,))]
    old = entries([("all_reduce", 4)] * 5, "1", "pair", begin=400)
    for entry in old:
        entry["record_id"] = 5000
    others = entries([waiting(("all_reduce", 4))], "0", begin=9)
    verdict = judged(tmp_path, {0: others, 1: old}, {"0": range(2), "1": range(2)})
    assert 1 not in verdict.culprits


def test_a_rank_that_did_not_arrive(tmp_path):
    others = entries([*STEP * 2, waiting(STEP[0])])
    verdict = judged(tmp_path, {0: others, 1: entries(STEP * 2), 2: others}, WORLD)
    assert first(verdict) == (AutopsyCause.NOT_ARRIVED, (1,), 7)
    finding = verdict.findings[0]
    assert (finding.operation, finding.waiting, finding.members, finding.last) == ("allreduce", (0, 2), 3, "allreduce #6")
    verdict = judged(tmp_path, {0: entries([waiting(STEP[0])]), 1: [], 2: entries([waiting(STEP[0])])}, WORLD)
    assert first(verdict) == (AutopsyCause.NOT_ARRIVED, (1,), 1)
    assert verdict.findings[0].last == ""
    verdict = judged(tmp_path, {0: message("recv 0<-1"), 1: [], 2: []}, PIPELINE)
    assert first(verdict) == (AutopsyCause.NOT_ARRIVED, (1,), 1)
    assert (verdict.findings[0].operation, verdict.findings[0].waiting) == ("recv", (0,))


def test_a_recorded_job_of_gloo():
    verdict = autopsy(read_traces([RECORDED / f"dump_rank_{rank}" for rank in range(3)]))
    assert first(verdict) == (AutopsyCause.NOT_ARRIVED, (2,), verdict.findings[0].sequence)
    assert len(verdict.findings) == 1


class TestMissingDumps:
    def test_missing_dumps_without_a_sign_of_the_cause_are_inconclusive(self, tmp_path):
        verdict = judged(tmp_path, {0: entries([*STEP, waiting(STEP[0])])}, WORLD)
        assert (verdict.result, verdict.exit_code, verdict.culprits) == (AutopsyResult.INCONCLUSIVE, 3, ())
        assert [(each.cause, each.ranks) for each in verdict.findings] == [(AutopsyCause.NO_DUMP, (1, 2))]
        verdict = judged(tmp_path, {0: entries(STEP), 2: entries(STEP)}, WORLD)
        assert (verdict.result, verdict.findings) == (AutopsyResult.INCONCLUSIVE, ())
        calls = {rank: entries(STEP, library="gloo") for rank in range(2)}
        for each in calls.values():
            del each[1]  # the all-gather, which has the number of ranks
        assert judged(tmp_path, calls).result is AutopsyResult.NOTHING_FOUND
        assert judged(tmp_path, calls, ranks=3).result is AutopsyResult.INCONCLUSIVE
        assert judged(tmp_path, {0: [], 1: []}, TWO).result is AutopsyResult.INCONCLUSIVE

    def test_in_a_group_without_recorded_members_the_missing_rank_may_be_one(self, tmp_path):
        pair = entries([waiting(("all_reduce", 9), "waiting")], "1", "undefined", library="gloo")
        whole = entries([("all_gather", 1, "retired"), ("all_reduce", 4, "retired")], library="gloo")
        for entry in whole:
            entry["output_sizes"] = [[3, *entry["output_sizes"][0][1:]]]
        late = entries([("all_reduce", 4, "waiting")], library="gloo", begin=3)
        verdict = judged(tmp_path, {0: [*whole, *pair], 2: [*whole, *late]})
        assert first(verdict) == (AutopsyCause.NO_DUMP, (1,), 1)


class TestMismatch:
    def test_of_two_ranks_the_earlier_steps_show_which_or_none_is_accused(self, tmp_path):
        right, wrong = (entries([*STEP * 3, waiting(call)]) for call in (STEP[0], ("all_reduce", 341)))
        verdict = judged(tmp_path, {0: wrong, 1: right}, TWO)
        assert first(verdict) == (AutopsyCause.SIZE, (0,), 10)
        assert verdict.findings[0].by_history
        verdict = judged(tmp_path, {0: entries([("all_reduce", 8)]), 1: entries([("all_reduce", 9)])}, TWO)
        assert first(verdict) == (AutopsyCause.SIZE, (), 1)
        assert (verdict.findings[0].compared, verdict.findings[0].values) == ((0, 1), ("allreduce of 8 float32", "allreduce of 9 float32"))

    def test_a_rank_that_ends_because_of_a_mismatch_is_not_accused_and_a_later_hang_has_its_own_cause(self, tmp_path):
        right, wrong = entries([*STEP * 3, STEP[0]]), entries([*STEP * 3, ("all_reduce", 341), waiting(STEP[1])])
        verdict = judged(tmp_path, {0: right, 1: wrong}, TWO)
        assert [(each.cause, each.ranks) for each in verdict.findings] == [(AutopsyCause.SIZE, (1,))]
        late = waiting(("all_reduce", 340))
        first_rank, second, third = ([*STEP[:1], ("all_reduce", size), *STEP * 12] for size in (12, 12, 13))
        ranks = {0: entries(first_rank), 1: entries([*second, late]), 2: entries([*third, late])}
        found = judged(tmp_path, ranks, WORLD).findings
        assert [(each.cause, each.ranks) for each in found] == [(AutopsyCause.SIZE, (2,)), (AutopsyCause.NOT_ARRIVED, (0,))]
        verdict = judged(tmp_path, {rank: entries([("all_to_all", 10 + rank)] * 3) for rank in range(3)}, WORLD)
        assert verdict.result is AutopsyResult.NOTHING_FOUND

    def test_uneven_all_to_alls_there_and_back_are_not_a_different_order(self, tmp_path):
        ranks = {rank: entries([("all_to_all", 100 - 40 * rank), ("all_to_all", 60 + 40 * rank)]) for rank in range(2)}
        for there, back in ranks.values():
            there["output_sizes"], back["output_sizes"] = back["input_sizes"], there["input_sizes"]
        verdict = judged(tmp_path, ranks, TWO)
        assert (verdict.result, verdict.findings) == (AutopsyResult.NOTHING_FOUND, ())


def test_a_batch_of_which_the_first_operations_were_overwritten_is_no_mismatch(tmp_path):
    batch = entries([("_broadcast_oop", size) for size in (10, 20, 30)])
    later = entries([*STEP, waiting(STEP[0])], begin=2)
    calls = [{**call, "collective_seq_id": 1} for call in batch] + later
    for number, call in enumerate(calls):
        call["record_id"] = 5000 + number
    verdict = judged(tmp_path, {0: calls[1:], 1: calls[1:], 2: calls[:-1]}, WORLD)
    assert first(verdict) == (AutopsyCause.NOT_ARRIVED, (2,), 5)
    assert len(verdict.findings) == 1


def test_collectives_of_completed_batches_are_not_pending_in_dumps_of_active_operations(tmp_path):
    called = []
    for number in (1, 4):  # the entry of each batch, which has completed, is left out
        batch = entries([("_broadcast_oop", size, "scheduled") for size in (10, 20)])
        called += [{**call, "collective_seq_id": number, "record_id": 4 * number + at} for at, call in enumerate(batch)]
    late = [{**call, "record_id": 30} for call in entries([waiting(STEP[0])], begin=5)]
    verdict = judged(tmp_path, {0: called + late, 1: called + late, 2: called}, WORLD)
    assert first(verdict) == (AutopsyCause.NOT_ARRIVED, (2,), 5)


class TestSeveralGroups:
    def test_the_cause_in_one_group_explains_the_others(self, tmp_path):
        whole, pair = entries([("all_reduce", 4)] * 3), waiting(("all_reduce", 9))
        late = entries([waiting(("all_reduce", 4))], begin=4)
        ranks = {0: [*whole, *entries([pair], "1", "pair")], 1: whole, 2: [*whole, *late], 3: [*whole, *late]}
        verdict = judged(tmp_path, ranks, PAIRS)
        assert first(verdict)[:2] == (AutopsyCause.NOT_ARRIVED, (1,))
        assert all(finding.ranks == (1,) for finding in verdict.findings)


class TestMessages:
    def test_a_rank_that_waits_for_a_message_or_has_sent_it_is_not_the_cause(self, tmp_path):
        late = entries([*STEP, waiting(STEP[0])])
        verdict = judged(tmp_path, {0: [*entries(STEP), *message("recv 0<-1")], 1: entries(STEP), 2: late}, PIPELINE)
        assert first(verdict)[:2] == (AutopsyCause.NOT_ARRIVED, (1,))
        assert [finding.ranks for finding in verdict.findings] == [(1,)]
        verdict = judged(tmp_path, {0: message("recv 0<-1"), 1: message("send 1->0"), 2: []}, PIPELINE)
        assert verdict.culprits == ()


class TestSlow:
    def verdict(self, folder, late, every=1):
        ranks = {}
        for rank in range(3):
            times = [call / 10 + (late.get(rank, 0) if call % every == 0 else 0) for call in range(len(SIXTY))]
            ranks[rank] = entries(SIXTY, times=times)
        return judged(folder, ranks, WORLD)

    def test_a_rank_that_is_late_at_each_call(self, tmp_path):
        verdict = self.verdict(tmp_path, {2: 0.05})
        cause, ranks, _ = first(verdict)
        assert (cause, ranks) == (AutopsyCause.SLOW, (2,))
        finding = verdict.findings[0]
        assert (finding.late, finding.of_calls) == (60, 60)
        assert finding.lost_s == pytest.approx(3.0, rel=0.01) and finding.span_s == pytest.approx(5.95, rel=0.01)

    @pytest.mark.parametrize(("late", "every"), [(0.005, 1), (0.05, 10)], ids=["within the error of clocks", "a tenth of the calls"])
    def test_less_is_not_reported(self, tmp_path, late, every):
        assert self.verdict(tmp_path, {2: late}, every).result is AutopsyResult.NOTHING_FOUND


def test_findings_are_values_that_survive_json():
    finding = AutopsyFinding(AutopsyCause.NOT_ARRIVED, (1,), "0", "default_pg", "allreduce", 7, (0, 2), 3)
    verdict = AutopsyVerdict(AutopsyResult.FOUND, (finding,), 3, True, 3, (), 1, 7)
    assert decode(as_json(verdict), AutopsyVerdict) == verdict


class TestPending:
    """No verdict is "nothing found" while an operation is pending."""

    def test_messages_that_both_sides_started_are_held_or_differ_in_size(self, tmp_path):
        verdict = judged(tmp_path, {0: [peer("send 0->1")], 1: [peer("recv 1<-0")]}, TWO)
        assert (verdict.exit_code, [each.cause for each in verdict.findings]) == (3, [AutopsyCause.NOTHING_MOVES])
        verdict = judged(tmp_path, {0: [peer("send 0->1", 5000)], 1: [peer("recv 1<-0", 4000)]}, TWO)
        assert (verdict.findings[0].cause, verdict.culprits, verdict.exit_code) == (AutopsyCause.SIZE, (), 1)

    @pytest.mark.parametrize("kind", ["broadcast", "gather"])
    def test_an_earlier_operation_that_some_have_completed_is_named_and_no_rank_accused(self, tmp_path, kind):
        held, ahead = entries([*BEFORE, (kind, 9, "started")]), entries([*BEFORE, (kind, 9), WAITS])
        verdict = judged(tmp_path, {0: held, 1: held, 2: ahead}, WORLD)
        (finding,) = verdict.findings
        assert (finding.cause, finding.operation, finding.sequence, finding.waiting) == (AutopsyCause.PARTLY, kind, 4, (0, 1))
        assert (verdict.exit_code, verdict.culprits) == (3, ())

    def test_what_may_be_an_additional_call_or_a_group_of_unknown_members_accuses_no_rank(self, tmp_path):
        verdict = judged(tmp_path, {0: entries(BEFORE), 1: entries([*BEFORE, WAITS]), 2: entries(BEFORE)}, WORLD)
        (finding,) = verdict.findings
        assert (finding.cause, finding.ranks, finding.waiting) == (AutopsyCause.NOT_ARRIVED_OR_ADDITIONAL, (0, 2), (1,))
        assert (verdict.exit_code, verdict.culprits) == (1, ())
        whole = entries([("all_reduce", 4, "retired")], library="gloo")
        pair = entries([("all_reduce", 9, "waiting")], "1", "undefined", library="gloo")
        verdict = judged(tmp_path, {0: [*whole, *pair], 1: [*whole, *pair], 2: whole})
        assert (verdict.exit_code, [each.cause for each in verdict.findings]) == (3, [AutopsyCause.NO_MEMBERS])

    def test_messages_of_a_batch_have_the_state_of_the_batch(self, tmp_path):
        batch = [{**entry, "state": "scheduled", "retired": False} for entry in (peer("send 0->1"), peer("recv 0<-1"))]
        other = [{**batch[0], "profiling_name": "nccl:recv 1<-0"}, {**batch[1], "profiling_name": "nccl:send 1->0"}]
        ends = {state: {**peer("coalesced", 0, state), "p2p_seq_id": 1} for state in ("completed", "started")}
        done = {0: [*batch, ends["completed"]], 1: [*other, ends["completed"]]}
        whole = {rank: [*entries(BEFORE), *calls] for rank, calls in done.items()}
        assert judged(tmp_path, whole, TWO).exit_code == 0
        pending = {0: [*entries(BEFORE), *batch, ends["started"]], 1: entries(BEFORE)}
        assert first(judged(tmp_path, pending, TWO))[:2] == (AutopsyCause.NOT_ARRIVED, (1,))


def test_the_status_of_groups_shows_what_ranks_without_entries_have_called(tmp_path):
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
def test_a_cut_dump_is_named_and_the_others_are_analysed(tmp_path, size):
    paths = write(tmp_path, {rank: entries([*STEP, waiting(STEP[0])]) for rank in range(3)}, WORLD)
    paths[2].write_bytes(paths[2].read_bytes()[:size])
    verdict = autopsy(read_traces(paths, without_damaged=True))
    assert first(verdict) == (AutopsyCause.NO_DUMP, (2,), 4)
    assert [(file.file, file.rank) for file in verdict.damaged] == [(str(paths[2]), 2)]
    with pytest.raises(UsageError):
        read_traces(paths)
