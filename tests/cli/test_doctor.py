"""collbench doctor and collbench explain, from the command line to the exit code."""

import json
from pathlib import Path

import pytest

from collbench.cli import machine
from collbench.cli.parser import Parser
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


@pytest.mark.contract
def test_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    code = run("doctor", "--format", "json")
    document = json.loads(capsys.readouterr().out)
    assert document["looked_at"].startswith("1 machine: ")
    assert code == any(finding["severity"] == "severe" for finding in document["findings"])


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(Unreadable):
        run("doctor", "--from", str(tmp_path / "nothing"))


def test_explain_has_a_code_and_lists_the_topics(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("explain", "CB2104") == 0
    assert capsys.readouterr().out.startswith("CB2104  ")
    assert run("explain") == 0
    assert capsys.readouterr().out.splitlines() == [line.text for line in topic_lines()]
