"""`collbench doctor --log`, from the command line to the exit code."""

import gzip
import json
import os
import socket
from pathlib import Path

import pytest

from collbench.machine.readers.text import Unreadable
from tests.cli.test_doctor import IBV_DOWN, no_launcher, run

__all__ = ["no_launcher"]
LOG = "node1:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0\n"


def test_a_log_is_examined_beside_the_files_or_without_this_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "up.txt").write_text(IBV_DOWN.replace("PORT_DOWN (1)", "PORT_ACTIVE (4)").replace("sm_lid:                 0", "sm_lid: 1"))
    (tmp_path / "nccl.log").write_text(LOG)
    assert run("doctor", "--from", str(tmp_path / "up.txt"), "--log", str(tmp_path / "nccl.log"), "--format", "json") == 1
    document = json.loads(capsys.readouterr().out)
    assert [finding["code"] for finding in document["findings"]] == ["CB2512"]
    assert all(count in document["looked_at"] for count in ("1 machine", "0 GPUs", "1 NIC", "1 NCCL log"))
    (tmp_path / "nccl.log.gz").write_bytes(gzip.compress(LOG.encode()))
    assert run("doctor", "--log", str(tmp_path / "nccl.log.gz")) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "CB2512" in lines[0]
    assert lines[-2].endswith(" 1 NCCL log") and "node1" in lines[-1] and "--from" in lines[-1]


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


@pytest.mark.parametrize(("data", "words"), [
    (b"", "log .*empty"), (b"\x7fELF\x00" + b"\x01" * 99, "log .*binary"), (b"remember the milk\n", "log .*NCCL"), (None, "log .*pipe"),
    ("folder", "log .*folder"), ("absent", "log "),
])  # fmt: skip
def test_a_file_that_is_not_a_log(data: bytes | str | None, words: str, tmp_path: Path) -> None:
    file = tmp_path / "log"
    if isinstance(data, bytes):
        file.write_bytes(data)
    elif data is None:
        os.mkfifo(file)
    elif data == "folder":
        file.mkdir()
    with pytest.raises(Unreadable, match=words):
        run("doctor", "--log", str(file))


@pytest.mark.system
def test_a_log_of_this_host_is_examined_beside_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "nccl.log").write_text(LOG.replace("node1", socket.gethostname()))
    run("doctor", "--log", str(tmp_path / "nccl.log"), "--format", "json")
    assert json.loads(capsys.readouterr().out)["hostnames"] == [socket.gethostname()]
