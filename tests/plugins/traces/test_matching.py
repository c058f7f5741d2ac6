"""Matched operations of ranks, and what the ranks disagree about."""

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from collbench.errors import UsageError
from collbench.plugins.traces.joining import joined
from collbench.plugins.traces.matching import DifferingField, check_agreement, differences, match
from collbench.plugins.traces.model import DTYPE, KIND, REDOP, UNKNOWN, Part, ProcessGroup, RankTrace, empty


def collectives(n=8, kind="allreduce", *, numbered=True):
    table = empty(n)
    table["kind"], table["dtype"], table["redop"] = KIND[kind], DTYPE["float32"], REDOP["sum"]
    table["group"] = 0
    table["sent"] = table["received"] = 100 + np.arange(n)
    if numbered:
        table["sequence"] = np.arange(n)
    return table


def job(*tables, world=None, splits=((),) * 8, missing=frozenset()):
    ranks = tuple(range(world or len(tables)))
    groups = (ProcessGroup("0", ranks),)
    traces = [
        RankTrace(rank, len(ranks), Path(f"rank{rank}"), groups, table, splits=splits[rank], missing=missing)
        for rank, table in enumerate(tables)
    ]
    return joined("test", traces)


def all_of(trace):
    return list(differences(trace, match(trace)))


def first_of(trace):
    return all_of(trace)[0]


def found(trace):
    """Field, sequence number and minority of each difference."""
    return [(each.field, each.sequence, each.minority) for each in all_of(trace)]


class TestMatch:
    def test_by_number_or_by_order_without_numbers(self):
        (whole,) = match(job(collectives(6), collectives(6)[2:]))
        assert whole.calls.tolist() == [[0, UNKNOWN], [1, UNKNOWN], [2, 0], [3, 1], [4, 2], [5, 3]]
        (whole,) = match(job(collectives(3, numbered=False), collectives(2)))
        assert whole.calls.tolist() == [[0, 0], [1, 1], [2, UNKNOWN]]
        tables = [collectives(4), collectives(4)]
        for table in tables:
            table["sequence"] = [5, 5, 5, 6]
        (whole,) = match(job(*tables))
        assert whole.calls.tolist() == [[0, 0], [1, 1], [2, 2], [3, 3]]

    def test_groups_are_apart_and_list_members_without_a_call(self):
        def rank(number, group, table):
            return RankTrace(number, 4, Path("x"), (group,), table)

        low, high = ProcessGroup("low", (0, 1)), ProcessGroup("high", (3, 2))
        calls = ((low, 2), (low, 0), (high, 1), (high, 1))
        trace = joined("test", [rank(number, group, collectives(n)) for number, (group, n) in enumerate(calls)])
        by_name = {trace.groups[each.group].name: each for each in match(trace)}
        assert by_name["low"].members == (0, 1) and by_name["low"].calls.tolist() == [[0, UNKNOWN], [1, UNKNOWN]]
        assert by_name["high"].members == (3, 2) and by_name["high"].calls.tolist() == [[0, 0]]

    def test_messages_of_a_pair_in_order_also_of_a_rank_that_was_not_read(self):
        first, second = empty(4), empty(3)
        first["group"] = second["group"] = 0
        first["kind"] = [KIND[name] for name in ("send", "recv", "send", "allreduce")]
        second["kind"] = [KIND[name] for name in ("recv", "allreduce", "send")]
        first["root"], second["root"] = 1, 0
        (whole,) = match(job(first, second))
        assert whole.messages.tolist() == [[0, 0, 1, 0], [0, 2, 1, UNKNOWN], [1, 2, 0, 1]]
        assert whole.calls.tolist() == [[3, 1]]
        table = empty(2)
        table["group"], table["kind"], table["root"] = 0, [KIND["send"], KIND["recv"]], [1, UNKNOWN]
        trace = job(table, world=3)
        (whole,) = match(trace)
        assert sorted(whole.messages.tolist()) == [[UNKNOWN, UNKNOWN, 0, 1], [0, 0, UNKNOWN, UNKNOWN]]
        assert found(trace) == [] and trace.absent == (1, 2)


def changed(column, value, at=3):
    def change(table):
        table[column][at] = value

    return change


class TestDifferences:
    def test_equal_ranks_have_no_differences_and_one_that_stops_early_misses_calls(self):
        trace = job(collectives(), collectives(), collectives())
        assert found(trace) == []
        check_agreement(trace, match(trace))
        trace = job(collectives(), collectives()[:6], collectives())
        assert found(trace) == [(DifferingField.MISSING, 6, (1,)), (DifferingField.MISSING, 7, (1,))]
        first = first_of(trace)
        assert first.values == ("allreduce", None, "allreduce") and first.operation == "allreduce"

    @pytest.mark.parametrize(("kind", "change", "field"), [
        ("allreduce", changed("kind", KIND["broadcast"]), DifferingField.OPERATION),
        ("allreduce", changed("sent", 7), DifferingField.SIZE), ("allgather", changed("received", 7), DifferingField.SIZE),
        ("allreduce", changed("dtype", DTYPE["bfloat16"]), DifferingField.DTYPE),
        ("reducescatter", changed("redop", REDOP["max"]), DifferingField.REDOP), ("broadcast", changed("root", 2), DifferingField.ROOT),
        ("broadcast", changed("received", 7000), DifferingField.SIZE), ("gather", changed("sent", 7), DifferingField.SIZE),
    ])  # fmt: skip
    def test_each_property(self, kind, change, field):
        tables = [collectives(kind=kind) for _ in range(3)]
        for table in tables:
            table["root"] = 0
        change(tables[1])
        assert found(job(*tables)) == [(field, 3, (1,))]

    @pytest.mark.parametrize(("kind", "change"), [
        ("allreduce", changed("root", 2)), ("allgather", changed("redop", REDOP["max"])), ("gather", changed("received", 0)),
        ("scatter", changed("sent", 0)), ("broadcast", changed("sent", 0)), ("barrier", changed("dtype", DTYPE["int8"])),
        ("allreduce", changed("dtype", 255)), ("allreduce", changed("sent", UNKNOWN)),
    ])  # fmt: skip
    def test_what_may_differ_or_is_unknown(self, kind, change):
        tables = [collectives(kind=kind) for _ in range(3)]
        change(tables[1])
        assert found(job(*tables)) == []

    def test_calls_before_the_first_recorded_one_and_gaps_of_a_trace_with_gaps_are_no_difference(self):
        assert found(job(collectives(), collectives()[3:])) == []
        tables = (collectives(), np.delete(collectives(), 4))
        assert found(job(*tables)) == [(DifferingField.MISSING, 4, ())]
        assert found(job(*tables, missing=frozenset({Part.OPERATIONS}))) == []

    def test_two_exchanged_calls_are_a_difference_of_order_and_a_skipped_one_is_not(self):
        tables = [collectives(numbered=False) for _ in range(3)]
        tables[2][[3, 4]] = tables[2][[4, 3]]
        first = first_of(job(*tables))
        assert (first.field, first.sequence, first.values, first.minority) == (DifferingField.ORDER, 3, (3, 3, 4), (2,))
        first = first_of(job(collectives(), collectives(), np.delete(collectives(numbered=False), 3)))
        assert (first.field, first.sequence, first.values, first.minority) == (DifferingField.SIZE, 3, (103, 103, 104), (2,))

    def test_uneven_all_to_alls_agree_by_pair(self):
        tables = [collectives(1, "alltoallv"), collectives(1, "alltoallv")]
        tables[0]["sent"], tables[1]["sent"] = 3, 9
        for table in tables:
            table["splits"] = 0
        splits = [[((1, 2), (1, 4))], [((4, 5), (2, 5))]]
        assert found(job(*tables, splits=splits)) == []
        splits[1] = [((4, 5), (3, 5))]
        (first,) = all_of(job(*tables, splits=splits))
        assert (first.field, first.ranks, first.values) == (DifferingField.SIZE, (0, 1), (2, 3))

    def test_messages(self):
        send, receive = empty(2), empty(2)
        for table, kind, peer in ((send, "send", 1), (receive, "recv", 0)):
            table["kind"], table["root"], table["group"], table["sent"], table["received"] = KIND[kind], peer, 0, 5, 5
        receive["received"][1] = 6
        (first,) = all_of(job(send, receive))
        assert (first.field, first.sequence, first.ranks, first.values, first.is_message) == (DifferingField.SIZE, 1, (0, 1), (5, 6), True)
        (first,) = all_of(job(send, receive[:1]))
        assert (first.field, first.sequence, first.values) == (DifferingField.MISSING, 1, ("send", None))

    def test_the_first_one_is_an_error_that_names_the_files_of_the_minority(self):
        tables = [collectives() for _ in range(3)]
        tables[1]["sent"][3] = 7
        trace = job(*tables)
        with pytest.raises(UsageError, match=r"^rank1: .*allreduce 3"):
            check_agreement(trace, match(trace))

    def test_they_come_in_the_order_of_the_program(self):
        def rank(number):
            table = np.concatenate([collectives(2), collectives(2)])
            table["group"], table["sequence"] = [0, 1, 1, 0], [0, 0, 1, 1]
            if number == 1:
                table["dtype"] = DTYPE["int8"]
            return RankTrace(number, 2, Path("x"), (ProcessGroup("a", (0, 1)), ProcessGroup("b", (0, 1))), table)

        trace = joined("test", [rank(0), rank(1)])
        assert [(each.group, each.sequence) for each in differences(trace, match(trace))] == [("a", 0), ("b", 0), ("b", 1), ("a", 1)]


def test_the_ranks_of_a_group_may_be_in_any_order():
    ranks = [RankTrace(rank, 2, Path("x"), (ProcessGroup("0", (1, 0)),), collectives(2)) for rank in range(2)]
    ranks[1] = replace(ranks[1], operations=collectives(1))
    (first,) = all_of(joined("test", ranks))
    assert (first.ranks, first.values) == ((0, 1), ("allreduce", None))
