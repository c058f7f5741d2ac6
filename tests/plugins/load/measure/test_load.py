"""Interference: the two sides, bad input, and real aggressors over one link of known rate."""

import json
import os
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest
from msgspec.structs import replace

from collbench.cli.main import parsed
from collbench.errors import UsageError
from collbench.measuring.request import Budget, Request
from collbench.operations.case import parse_split
from collbench.operations.registry import operations
from collbench.operations.sweep import Sweep
from collbench.plugins.load.command import LoadOptions, load_request
from collbench.plugins.load.records import LoadRow
from collbench.plugins.load.task import LoadRequest, sets_of, sides_of
from collbench.plugins.load.text import INTERFERENCE
from collbench.results.reader import read_run
from collbench.results.store import LOCK
from tests.cli.command import BIN, PROGRAM, environment, one_sentence, run_here
from tests.conftest import enter
from tests.testbeds import Bottleneck, Hosts

LAUNCH = Request("load", Sweep((), None, ()), ("mpi",), budget=Budget(1.0))
REQUEST = LoadRequest(LAUNCH, operations()["allreduce"], 8, (("incast",),), 4096, (1.0,))
FOUR = ["n1", "n2", "n3", "n4"]
MPICH = BIN / "mpiexec"


class TestSides:
    def test_nodes_alternate_split_or_share_the_patterns_of_a_mix(self) -> None:
        for number, others in ((None, (1, 3)), (2, (1, 3))):
            sides = sides_of(replace(REQUEST, nodes=number), FOUR)
            assert (sides.victims, sides.others, sides.common) == ((0, 2), others, [])
        sides = sides_of(replace(REQUEST, split=parse_split("MOD 2")), ["n1", "n1", "n2", "n2"])
        assert (sides.victims, sides.others, sides.common) == ((0, 2), (1, 3), ["n1", "n2"])
        hosts = [f"n{rank // 2}" for rank in range(12)]
        assert sets_of(("incast", "ring"), range(4, 12), hosts) == [(4, 5, 8, 9), (6, 7, 10, 11)]
        assert sets_of(("incast", "ring"), range(8, 12), hosts) == [(8, 10), (9, 11)]

    @pytest.mark.parametrize("number", [2, 3, 4, 5, 6])
    def test_as_many_nodes_as_asked_for_are_aggressors(self, number: int) -> None:
        hosts = [f"n{rank // 2}" for rank in range(16)]
        sides = sides_of(replace(REQUEST, nodes=number), hosts)
        assert len({hosts[rank] for rank in sides.others}) == number and 0 in sides.victims
        assert sorted((*sides.victims, *sides.others)) == list(range(16))

    @pytest.mark.parametrize(("request_", "hosts"), [
        (REQUEST, ["n1", "n1"]),  # one node
        (replace(REQUEST, nodes=4), FOUR),  # no node for the victims
        (REQUEST, ["n1", "n2"]),  # no shared link
        (replace(REQUEST, nodes=1), FOUR),  # aggressors on one node
        (replace(REQUEST, split=parse_split("DIV 2")), ["n1", "n1", "n2", "n2"]),
        (replace(REQUEST, mixes=(("incast", "ring"),)), FOUR),  # too few aggressors
    ])  # fmt: skip
    def test_sides_that_share_no_link_or_do_not_fit_are_refused(self, request_: LoadRequest, hosts: list[str]) -> None:
        with pytest.raises(UsageError):
            sides_of(request_, hosts)


@pytest.mark.parametrize("words", [
    ["--ranks", "2"], ["--against", "storm"], ["--levels", "120"], ["--levels", "x"], ["--victim", "barrier"], ["--ramp", "--levels", "5"],
    ["--split", "MOD 2", "--aggressors", "1"], ["--backend", "mpi,gloo"],
])  # fmt: skip
def test_bad_input_is_one_sentence(words: list[str], tmp_path: Path) -> None:
    done = run_here(tmp_path, "load", *words)
    assert done.returncode == 2 and one_sentence(done)


@pytest.mark.hosts
@pytest.mark.long
@pytest.mark.timeout(120)
@pytest.mark.skipif(not MPICH.exists(), reason="no MPICH in this environment: pip install collbench[mpich]")
def test_aggressors_on_one_link_are_measured_and_all_data_is_right(tmp_path: Path) -> None:
    with ExitStack() as stack:
        bed = enter(stack, Bottleneck(4, 100))
        rows = launched(bed, tmp_path / "run", "--max-time", "2", "--blocks", "4", "--levels", "0,100")
    control, full = sorted(rows, key=lambda row: row.level)
    assert [row.wrong for row in rows] == [0, 0] and [row.blocks for row in rows] == [4, 4]
    assert (control.victims, control.others) == ((0, 2), (1, 3)) and control.achieved == 0
    assert [link.kind for link in full.shared] == ["fabric"]
    # both sides cross the link, so the aggressors cannot exceed its rate
    assert full.full_bytes_per_s is not None and 0 < full.full_bytes_per_s < 12.5e6 * 1.02
    assert full.achieved is not None and full.achieved > 0 and full.factor.value is not None


@pytest.mark.parametrize(
    ("name", "operation"), [("p2p", "p2p_latency"), ("put", "put_latency"), ("neighbor-alltoall", "neighbor_alltoall")]
)
def test_a_command_names_its_first_operation_as_the_victim(name: str, operation: str) -> None:
    argv = ["load", "--victim", name]
    assert load_request(LoadOptions.of(parsed(argv)), argv, None).victim.name == operation


@pytest.mark.hosts
@pytest.mark.long
@pytest.mark.timeout(120)
@pytest.mark.skipif(not MPICH.exists(), reason="no MPICH in this environment: pip install collbench[mpich]")
@pytest.mark.parametrize(
    ("words", "opposite"), [(["--backend", "gloo"], False), (["--backend", "gloo", "--victim", "p2p_bandwidth", "--size", "64K"], True)]
)
def test_the_directions_of_shared_links_are_stored(words: list[str], opposite: bool, tmp_path: Path) -> None:
    """Gloo reduces in place only, which the default victim must not forbid."""
    with ExitStack() as stack:
        bed = enter(stack, Hosts(2, "200mbit"))
        start = [str(MPICH), "-launcher", "ssh", "-launcher-exec", bed.rsh, "-hosts", ",".join(bed.names), "-ppn", "2", "-iface", "eth0"]
        load = ["load", "--split", "MOD 2", "--max-time", "1", "--blocks", "4", "--out", str(tmp_path / "run")]
        done = bed.run(0, [*start, "-n", "4", *PROGRAM, *load, *words], 100, environment())
    assert done.returncode == 0, done.stderr
    (row,) = INTERFERENCE.read(tmp_path / "run")[0]
    assert row.na is None and row.wrong == 0 and row.blocks == 4
    assert {link.place: link.receivers for link in row.shared} == (
        {bed.names[0]: ("aggressors",), bed.names[1]: ("victims",)}
        if opposite
        else {bed.names[0]: ("victims", "aggressors"), bed.names[1]: ("victims",)}
    )
    assert [link.opposite for link in row.shared] == [opposite, opposite]


@pytest.mark.hosts
@pytest.mark.long
@pytest.mark.timeout(240)
@pytest.mark.skipif(not MPICH.exists(), reason="no MPICH in this environment: pip install collbench[mpich]")
def test_a_killed_run_has_its_finished_rows_and_is_resumed(tmp_path: Path) -> None:
    """Rank 0 is killed after the first row: the row is there, was printed, and is not measured again."""
    words = ("--max-time", "2", "--blocks", "4", "--levels", "0,50,100", "--seed", "1", "--format", "csv")
    folder = tmp_path / "run"
    with ExitStack() as stack:
        bed = enter(stack, Bottleneck(4, 100))
        process = bed.start(0, command(bed, folder, *words), environment())
        assert process.stdout
        process.stdout.readline()  # the header comes with the first row
        first = process.stdout.readline()
        os.kill(json.loads((folder / LOCK).read_text())["pid"], signal.SIGKILL)
        process.communicate(timeout=60)
        (row, *_) = found = INTERFERENCE.read(folder)[0]
        assert len(found) < 3 and f",{row.level}," in first
        assert len(read_run(folder).rows) >= 2 * len(found)
        done = bed.run(0, [*command(bed, None, *words), "--resume", str(folder)], 120, environment())
    assert done.returncode == 0, done.stderr
    assert sorted(each.level for each in INTERFERENCE.read(folder)[0]) == [0, 0.5, 1] and INTERFERENCE.read(folder)[0][0] == row
    assert read_run(folder).info["rows"] == 3


def command(bed: Bottleneck, folder: Path | None, *words: str) -> list[str]:
    reach = ["-launcher", "ssh", "-launcher-exec", bed.rsh, "-hosts", ",".join(bed.names), "-ppn", "1", "-iface", "eth0"]
    passed = ["-n", str(bed.count), "-genv", "UCX_TLS", "tcp,self", "-genv", "UCX_NET_DEVICES", "eth0"]
    what = ["--victim", "p2p_bandwidth", "--size", "64K", "--against", "ring", "--message", "64K"]
    out = ["--out", str(folder)] if folder else []
    return [str(MPICH), *reach, *passed, *PROGRAM, "load", "--backend", "mpi", *what, *out, *words]


def launched(bed: Bottleneck, folder: Path, *words: str) -> list[LoadRow]:
    """Return the rows of a run with a rank on each host, over MPI: messages of 64 KiB one way against a ring."""
    done = bed.run(0, command(bed, folder, *words), 100, environment())
    assert done.returncode == 0, done.stderr
    return INTERFERENCE.read(folder)[0]
