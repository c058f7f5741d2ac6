"""`collbench kv` by NIXL: every block in its place, faults, a link of known rate, and what `backends` says without it."""

import json
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from collbench.backends.backend import Available, Unavailable
from collbench.plugins.kv.records import KvRow
from collbench.plugins.kv.text import BLOCK_TRANSFERS
from collbench.plugins.libraries.nixl import NixlBackend, wheel
from tests.cli.command import run, run_here, start
from tests.conftest import enter
from tests.control.ends_here import free_port
from tests.plugins.libraries.stack import across, collbench_of, environment_of
from tests.testbeds import Hosts

COUNTED = ["-n", "3", "-w", "1", "--max-time", "5"]
of_plugin = [pytest.mark.long, pytest.mark.timeout(120)]


def rows_in(folder: Path) -> list[KvRow]:
    return BLOCK_TRANSFERS.read(folder)[0]


@pytest.mark.skipif(wheel() is not None, reason="NIXL is installed in this environment")
def test_a_missing_wheel_is_one_sentence_with_the_remedy(tmp_path: Path) -> None:
    answer = NixlBackend.probe()
    assert isinstance(answer, Unavailable) and "tools/nixl" in answer.remedy
    done = run_here(tmp_path, "kv", "--method", "nixl", "--ranks", "2", "--dry-run")
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "nixl-cu13" in done.stderr


def test_an_installed_wheel_is_found_by_its_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nixl_cu12").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert isinstance(NixlBackend.probe(), Available) and wheel() in ("nixl_cu12", "nixl_cu13")


class TestOverNixl:
    pytestmark = of_plugin

    @pytest.mark.parametrize(("ranks", "words"), [
        (2, ["--blocks", "40", "--block-bytes", "1000"]),
        (3, ["--model", "mistral-7b", "--tokens", "16", "--tp", "2:1", "--cache-dtype", "fp8"]),
        (3, ["--model", "mistral-7b", "--tokens", "16", "--tp", "1:2", "--layout", "block-first"]),
        (3, ["--pattern", "broadcast", "--blocks", "9", "--block-bytes", "64K"]),
    ])  # fmt: skip
    def test_every_block_gets_to_its_place(self, ranks: int, words: list[str], tmp_path: Path) -> None:
        line = ["kv", "--method", "nixl", "--ranks", str(ranks), "--oversubscribe", *words, *COUNTED, "--out", "run"]
        done = collbench_of("nixl", tmp_path, *line, timeout=100)
        assert done.returncode == 0, done.stderr
        (row,) = rows_in(tmp_path / "run")
        assert (row.na, row.checked, row.wrong, row.n, row.backend) == (None, 1, 0, 3, "nixl")
        libraries = row.evidence["libraries"]
        assert libraries["nixl_plugin"] == "UCX" and "registration" in libraries["not_timed"]

    def test_it_runs_beside_mpi_in_one_process(self, tmp_path: Path) -> None:
        """Both wheels have their own UCX, and a destructor of one crashed when such a process ended."""
        line = [
            "kv", "--method", "nixl,mpi-type,mpi-put", "--ranks", "2", "--blocks", "9", "--block-bytes", "64K", *COUNTED, "--out", "run",
        ]  # fmt: skip
        done = collbench_of("nixl", tmp_path, *line, timeout=100)
        assert done.returncode == 0 and "fault" not in done.stdout + done.stderr, done.stderr
        assert {(row.method, row.wrong) for row in rows_in(tmp_path / "run")} == {("nixl", 0), ("mpi-type", 0), ("mpi-put", 0)}

    def test_its_output_has_no_lines_of_the_library(self, tmp_path: Path) -> None:
        line = ["kv", "--method", "nixl", "--ranks", "2", "--blocks", "4", "--block-bytes", "64", *COUNTED, "--format", "json"]
        done = collbench_of("nixl", tmp_path, *line, timeout=100)
        assert [json.loads(text)["method"] for text in done.stdout.splitlines()] == ["nixl"]

    @pytest.mark.parametrize("fault", ["flipped", "misplaced"])
    def test_wrong_blocks_end_with_4(self, fault: str, tmp_path: Path) -> None:
        codes = self.spoilt(tmp_path, fault)
        (row,) = rows_in(tmp_path / "0/run")
        assert codes == [4, 4] and row.wrong and row.evidence["wrong_data"]["first"][0]["rank"] == 1

    def test_a_killed_target_ends_the_source_with_4(self, tmp_path: Path) -> None:
        assert self.spoilt(tmp_path, "killed") == [4, -signal.SIGKILL]
        assert "rank 1" in (tmp_path / "0/stderr").read_text()

    def spoilt(self, folder: Path, fault: str) -> list[int]:
        program = (environment_of("nixl"), "-m", "tests.plugins.kv.measure.kv_spoilt")
        line = [fault, "kv", "--method", "nixl", "--blocks", "5", "--block-bytes", "4K", *COUNTED, "--timeout", "15", "--out", "run"]
        ranks, port = [], free_port()
        for rank in range(2):
            (folder / str(rank)).mkdir()
            of_rank = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": 2, "MASTER_PORT": port}
            env = {name: str(value) for name, value in of_rank.items()} | {"MASTER_ADDR": "127.0.0.1"}
            ranks.append(start(folder / str(rank), *line, program=program, env=env))
        return [each.wait(80) for each in ranks]

    def test_other_operations_are_not_available(self, tmp_path: Path) -> None:
        done = run(tmp_path, "allreduce", "--backend", "nixl", "--ranks", "2", program=(environment_of("nixl"), "-m", "collbench"))
        assert done.returncode == 2 and "nixl does not support allreduce" in done.stderr

    @pytest.mark.hosts
    def test_it_reads_the_rate_of_a_link(self, tmp_path: Path) -> None:
        with ExitStack() as stack:
            hosts = enter(stack, Hosts(2, "200mbit", "64kb"))
            line = ["kv", "--method", "nixl", "--blocks", "64", "--block-bytes", "64K", *COUNTED]
            tcp = {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "eth0"}
            across(hosts, "nixl", tmp_path / "run", line, timeout=80, env=tcp)
        (row,) = rows_in(tmp_path / "run")
        assert (row.nodes, row.wrong) == (2, 0) and row.percent_of_link is not None and 50 < row.percent_of_link < 103
        assert row.evidence["libraries"]["ucx_tls"] == "tcp,self"
