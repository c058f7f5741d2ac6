"""Transfers of blocks: what verification detects, bad input, and real ranks by every method."""

import json
import signal
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from collbench.operations.program import Program
from collbench.plugins.kv.block_transfer import METHODS, BlockPattern, Nixl, TransferMethod
from collbench.plugins.kv.models import PlainBlocks, make_plan
from collbench.plugins.kv.records import KvRow
from collbench.plugins.kv.task import must_cross
from collbench.plugins.kv.text import BLOCK_TRANSFERS
from collbench.results.reader import read_run
from tests.cli.command import BIN, PROGRAM, environment, one_sentence, run, run_here, start
from tests.conftest import enter
from tests.control.ends_here import free_port
from tests.testbeds import Hosts

MPICH = BIN / "mpiexec"
SPOILT = (PROGRAM[0], "-m", "tests.plugins.kv.measure.kv_spoilt")
needs_mpich = pytest.mark.skipif(not MPICH.exists(), reason="no MPICH in this environment: pip install collbench[mpich]")


class Copied(TransferMethod):
    """Moves blocks between the memory of two objects of this process."""

    name, backend, summary = "copied", "none", "for this test"

    def bind(self) -> Program:
        return Program(((),))


def ends() -> tuple[Copied, Copied]:
    """A source and a target of 6 blocks of 100 bytes, filled, after a transfer."""
    plan = make_plan(PlainBlocks(6, 100), "prefill-decode", 1, 1, 5)
    source, target = (Copied(plan, cast(Any, SimpleNamespace(rank=rank)), cast(Any, None)) for rank in (0, 1))
    for one in (source, target):
        one.allocate()
        PATTERN.fill(one)
    (link,) = plan.links
    target.pool[link.at_target] = source.pool[link.at_source]
    return source, target


PATTERN = BlockPattern(100, 9)


def test_blocks_that_are_changed_swapped_misplaced_or_old_are_found() -> None:
    source, target = ends()
    assert PATTERN.check(target) is None and PATTERN.check(source) is None
    _, target = ends()
    place = int(target.into[0].at_target[2])
    target.pool[place, 17] ^= 1
    found = PATTERN.check(target)
    assert found is not None and (found.rank, found.wrong, found.index) == (1, 1, place * 100 + 17)
    _, target = ends()
    first, second = target.into[0].at_target[:2]
    target.pool[[first, second]] = target.pool[[second, first]]
    assert PATTERN.check(target) is not None
    _, target = ends()
    used = set(target.into[0].at_target.tolist())
    unused_place = next(place for place in range(len(target.pool)) if place not in used)
    target.pool[unused_place, 3] = 0
    found = PATTERN.check(target)
    assert found is not None and (found.wrong, found.index) == (1, unused_place * 100)
    _, target = ends()
    assert BlockPattern(100, 10).check(target) is not None


def test_bytes_cross_only_between_hosts_and_targets_wait_for_each_source() -> None:
    plan = make_plan(PlainBlocks(6, 100), "prefill-decode", 2, 1, 5)
    found = must_cross(plan, {0: "a", 1: "b", 2: "b"})
    assert (found.out, found.into, found.total) == ({"a": 600}, {"b": 600}, 600)
    agent = AgentDouble({"a": [b"kv", b"kv"]}, {}, {"b": [b"kv"]}, {"b": [b"kv"]}, {"a": [b"kv"], "b": [b"kv"]})
    method = object.__new__(Nixl)
    method.agent, method.notified = agent, Counter()
    method.wait_for(["a", "b"])
    assert len(agent.polls) == 2
    method.wait_for(["a", "b"])  # the second notification of "a" came early
    assert len(agent.polls) == 1
    method.wait_for(["a", "b"])
    assert agent.polls == []


class AgentDouble:
    """Notifies as listed, one poll after the other."""

    def __init__(self, *polls: dict[str, list[bytes]]) -> None:
        self.polls = list(polls)

    def get_new_notifs(self) -> dict[str, list[bytes]]:
        return self.polls.pop(0)


@pytest.mark.parametrize("words", [
    ["--method", "pigeon"], ["--model", "elephant"], ["--model", "mistral-7b", "--blocks", "3"], ["--tokens", "9"], ["--blocks", "0"],
    ["--blocks", "x"], ["--block-bytes", "4"], ["--tp", "2"], ["--tp", "3:2", "--ranks", "5"], ["--tp", "1:3"],
    ["--pattern", "broadcast", "--model", "mistral-7b"], ["--pattern", "broadcast", "--tp", "1:1"], ["--ranks", "3"],
])  # fmt: skip
def test_bad_input_is_one_sentence(words: list[str], tmp_path: Path) -> None:
    given = words if "--ranks" in words else [*words, "--ranks", "2"]
    done = run_here(tmp_path, "kv", "--dry-run", *given)
    assert done.returncode == 2 and one_sentence(done)


def measured(folder: Path, *words: str) -> dict[str, KvRow]:
    options = ["--oversubscribe", "-n", "3", "-w", "1", "--max-time", "5", "--out", str(folder / "run")]
    done = run(folder, "kv", *options, *words, timeout=100)
    assert done.returncode == 0, done.stderr
    return {row.method: row for row in BLOCK_TRANSFERS.read(folder / "run")[0]}


def as_torchrun(rank: int, port: int) -> dict[str, str]:
    numbers = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": 2, "MASTER_PORT": port}
    return {name: str(value) for name, value in numbers.items()} | {"MASTER_ADDR": "127.0.0.1"}


@pytest.mark.system
@pytest.mark.often("words0")
@pytest.mark.long
@pytest.mark.timeout(120)
@needs_mpich
@pytest.mark.parametrize("words", [
    ["--ranks", "2", "--blocks", "40", "--block-bytes", "1000"],
    ["--ranks", "3", "--model", "mistral-7b", "--tokens", "16", "--tp", "2:1", "--method", "mpi-messages,mpi-put,packed,writev"],
    ["--ranks", "3", "--pattern", "broadcast", "--blocks", "9", "--block-bytes", "64K"],
])  # fmt: skip
def test_every_method_puts_every_block_in_its_place(words: list[str], tmp_path: Path) -> None:
    rows = measured(tmp_path, *words)
    assert set(rows) == (set(words[-1].split(",")) if "--method" in words else set(METHODS))
    for row in rows.values():
        if row.method == "nixl":  # its wheel is in another environment: tests/plugins/libraries/test_nixl.py
            assert row.na is not None and row.na_fact is not None and row.na_fact["package"] == "nixl-cu13"
            continue
        assert (row.na, row.checked, row.wrong, row.n) == (None, 1, 0, 3)
        assert row.time_s.value is not None and row.time_s.value > 0 and row.start_skew_s is not None
        assert ("skew_limited" in row.flags) == (row.start_skew_s > 0.1 * row.time_s.value)
    assert rows["packed"].copy_s is not None and rows["mpi-put"].copy_s is None


@pytest.mark.long
@pytest.mark.timeout(120)
def test_a_trace_has_each_transfer_with_its_phases_and_samples(tmp_path: Path) -> None:
    words = ["--ranks", "2", "--blocks", "4", "--block-bytes", "1000", "--method", "writev", "-n", "4", "-w", "3", "--trace", "trace.json"]
    done = run_here(tmp_path, "kv", *words, "--out", "run")
    assert done.returncode == 0, done.stderr
    assert "the trace lacks" not in done.stderr
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    kinds = Counter(event.get("cat") for event in events)
    assert kinds["case"] == 1 and kinds["sample"] == 8
    assert [event["name"] for event in events if event.get("cat") == "phase"] == ["set-up", "warm-up", "samples", "verification"]


@pytest.mark.system
@needs_mpich
@pytest.mark.parametrize(
    ("fault", "method"), [("flipped", "mpi-type"), ("misplaced", "mpi-put"), ("flipped", "packed"), ("misplaced", "writev")]
)
def test_wrong_blocks_of_a_library_end_with_4(fault: str, method: str, tmp_path: Path) -> None:
    what = ["--blocks", "5", "--block-bytes", "4K", "--method", method, "-n", "3", "-w", "1"]
    done = run(tmp_path, fault, "kv", *what, "--out", "run", program=(str(MPICH), "-n", "2", *SPOILT), timeout=100)
    assert done.returncode == 4
    (row,) = BLOCK_TRANSFERS.read(tmp_path / "run")[0]
    wrong = row.evidence["wrong_data"]["first"][0]
    assert row.wrong == (1 if fault == "flipped" else row.wrong) and row.wrong and wrong["rank"] == 1


@pytest.mark.long
@pytest.mark.timeout(120)
@needs_mpich
def test_what_a_method_holds_is_freed_where_a_rank_cannot_use_it(tmp_path: Path) -> None:
    methods = ["mpi-messages", "mpi-type", "mpi-put", "writev"]
    what = ["--blocks", "5", "--block-bytes", "4K", "--method", ",".join(methods), "-n", "3", "-w", "1"]
    done = run(tmp_path, "unmade", "kv", *what, "--out", "run", program=(str(MPICH), "-n", "2", *SPOILT), timeout=100)
    rows = BLOCK_TRANSFERS.read(tmp_path / "run")[0]
    assert done.returncode == 2 and {row.method for row in rows} == set(methods)
    assert all(row.na and "no calls" in row.na for row in rows)
    assert {f"freed {name} {rank}" for name in methods for rank in (0, 1)} <= set(done.stderr.splitlines())


@pytest.mark.long
@pytest.mark.timeout(120)
def test_a_killed_rank_ends_the_other_one_with_4(tmp_path: Path) -> None:
    what = ["--blocks", "64", "--block-bytes", "64K", "--method", "writev", "--timeout", "10", "--out", "run"]
    folders, port = [tmp_path / "0", tmp_path / "1"], free_port()
    for folder in folders:
        folder.mkdir()
    ranks = [start(folder, "killed", "kv", *what, program=SPOILT, env=as_torchrun(rank, port)) for rank, folder in enumerate(folders)]
    assert ranks[1].wait(60) == -signal.SIGKILL and ranks[0].wait(60) == 4
    assert "rank 1" in (folders[0] / "stderr").read_text()


@pytest.mark.hosts
@pytest.mark.long
@pytest.mark.timeout(120)
@needs_mpich
def test_every_method_reads_the_rate_of_a_link(tmp_path: Path) -> None:
    methods = [name for name in METHODS if name != "nixl"]  # tests/plugins/libraries/test_nixl.py has it
    with ExitStack() as stack:
        bed = enter(stack, Hosts(2, "200mbit", "64kb"))
        reach = ["-launcher", "ssh", "-launcher-exec", bed.rsh, "-hosts", ",".join(bed.names), "-ppn", "1", "-iface", "eth0"]
        passed = ["-n", "2", "-genv", "UCX_TLS", "tcp,self", "-genv", "UCX_NET_DEVICES", "eth0"]
        what = ["--blocks", "64", "--block-bytes", "64K", "--method", ",".join(methods), "-n", "3", "-w", "1", "--max-time", "8"]
        line = [str(MPICH), *reach, *passed, *PROGRAM, "kv", *what, "--out", str(tmp_path / "run")]
        done = bed.run(0, line, 100, environment())
    assert done.returncode == 0, done.stderr
    rows, _ = BLOCK_TRANSFERS.read(tmp_path / "run")
    assert {row.method for row in rows} == set(methods)
    for row in rows:
        assert (row.nodes, row.wrong) == (2, 0) and row.percent is not None and 50 < row.percent < 103, (
            row.method
        )  # copies are within the time
        assert row.limited_by.startswith("NIC eth0 0.2 Gb/s")
    cases = {row.traffic: row for row in read_run(tmp_path / "run").rows}
    assert len(cases) == len(methods) and all(case.ceiling and case.ceiling.kind == "network" for case in cases.values())
