"""collbench doctor and collbench explain, from the command line to the exit code."""

from __future__ import annotations

import gzip
import json
import os
import socket
from pathlib import Path

import pytest

from collbench.cli import machine
from collbench.cli.parser import Parser
from collbench.errors import UsageError
from collbench.machine.readers.text import Unreadable
from collbench.report.explain import topic_lines

IBV_DOWN = """\
hca_id: mlx5_0
        transport:                      InfiniBand (0)
        fw_ver:                         28.39.2048
        vendor_id:                      0x02c9
        vendor_part_id:                 4129
                port:   1
                        state:                  PORT_DOWN (1)
                        sm_lid:                 0
                        port_lid:               65535
                        link_layer:             InfiniBand
"""
LOG = "node1:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0\n"


def run(*words: str) -> int:
    """Run the command in this process."""
    parser = Parser(prog="collbench")
    commands = parser.add_subparsers(parser_class=Parser)
    machine.add_doctor(commands)
    machine.add_explain(commands)
    arguments = parser.parse_args(list(words))
    code: int = arguments.call(arguments, list(words))
    return code


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_JOB_ID", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK"):
        monkeypatch.delenv(name, raising=False)


def test_files_of_a_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "ibv_devinfo.txt"
    file.write_text(IBV_DOWN)
    assert run("doctor", "--from", str(file)) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["severe", "CB2202", "mlx5_0"]
    assert lines[3].startswith("1 finding: 1 severe") and "`collbench explain CB2202`" in lines[3]


def test_a_log_beside_the_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "up.txt").write_text(IBV_DOWN.replace("PORT_DOWN (1)", "PORT_ACTIVE (4)").replace("sm_lid:                 0", "sm_lid: 1"))
    (tmp_path / "nccl.log").write_text(LOG)
    assert run("doctor", "--from", str(tmp_path / "up.txt"), "--log", str(tmp_path / "nccl.log"), "--format", "json") == 1
    document = json.loads(capsys.readouterr().out)
    assert [finding["code"] for finding in document["findings"]] == ["CB2512"]
    assert all(count in document["looked_at"] for count in ("1 machine", "0 GPUs", "1 NIC", "1 NCCL log"))


def test_a_log_is_summarized_in_text_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "rails.log"
    log.write_text(
        "n1:1:2 [0] NCCL INFO NCCL version 2.99.1+cuda12.9\n"
        "n1:1:2 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>\n"
        "n1:1:2 [0] NCCL INFO Using network IB\n"
    )
    assert run("doctor", "--log", str(log)) == 0
    out = capsys.readouterr().out
    assert "note     CB2517" in out
    assert "rails.log: NCCL 2.99.1+cuda12.9" in out
    run("doctor", "--log", str(log), "--format", "json")
    (summary,) = json.loads(capsys.readouterr().out)["logs"]
    assert summary["hcas"][0] == {"number": 0, "name": "mlx5_0", "port": 1, "link_layer": "RoCE", "sharp": False}
    assert (summary["version"], summary["nvls"], summary["gpudirect"]) == ("2.99.1", None, "unknown")


def test_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    code = run("doctor", "--format", "json")
    document = json.loads(capsys.readouterr().out)
    assert document["looked_at"].startswith("1 machine: ")
    assert code == any(finding["severity"] == "severe" for finding in document["findings"])


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(Unreadable):
        run("doctor", "--from", str(tmp_path / "nothing"))
    with pytest.raises(Unreadable, match="nothing "):
        run("doctor", "--log", str(tmp_path / "nothing"))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "log .*empty"),
        (b"\x7fELF\x00" + b"\x01" * 99, "log .*binary"),
        (b"remember the milk\n", "log .*NCCL"),
        (None, "log .*pipe"),
        ("folder", "log .*folder"),
    ],
)
def test_a_file_that_is_not_a_log(data: bytes | str | None, words: str, tmp_path: Path) -> None:
    file = tmp_path / "log"
    if isinstance(data, bytes):
        file.write_bytes(data)
    else:
        os.mkfifo(file) if data is None else file.mkdir()
    with pytest.raises(Unreadable, match=words):
        run("doctor", "--log", str(file))


def test_a_foreign_log_is_examined_without_this_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "nccl.log.gz").write_bytes(gzip.compress(LOG.encode()))
    assert run("doctor", "--log", str(tmp_path / "nccl.log.gz")) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "CB2512" in lines[0]
    assert lines[-2].endswith(" 1 NCCL log") and "node1" in lines[-1] and "--from" in lines[-1]


def test_a_log_of_this_host_is_examined_beside_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "nccl.log").write_text(LOG.replace("node1", socket.gethostname()))
    run("doctor", "--log", str(tmp_path / "nccl.log"), "--format", "json")
    assert json.loads(capsys.readouterr().out)["hostnames"] == [socket.gethostname()]


def test_an_unknown_format() -> None:
    with pytest.raises(UsageError, match="--format"):
        run("doctor", "--format", "xml")


def test_explain_a_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("explain", "CB2104") == 0
    assert capsys.readouterr().out.startswith("CB2104  ")


def test_explain_alone_lists_the_topics(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("explain") == 0
    assert capsys.readouterr().out.splitlines() == [line.text for line in topic_lines()]


def test_explain_an_unknown_code() -> None:
    with pytest.raises(UsageError, match="'CB1'"):
        run("explain", "CB1")
