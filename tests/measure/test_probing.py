"""One probe per host, gathered at rank 0: all ranks return rank 0's code, or report the error of the rank that failed."""

import json
import socket
import subprocess
import sys

import pytest

from collbench.errors import UsageError
from collbench.launch.detect import to_variable
from collbench.launch.info import LaunchInfo
from collbench.machine.here import this_machine
from collbench.measuring.probing import at_rank_0, launched, together
from tests.cli.command import ROOT, environment

# One rank: prints its input and its exit.
RANK = """
import json, os, sys
from collbench.errors import CollbenchError, UsageError
from collbench.measuring import probing
from collbench.machine import here
reported = []
def report(machines):
    reported.append([machine.hostname for machine in machines])
    {then}
if os.environ.get("BROKEN"):
    def broken():
        raise UsageError("sysfs is not mounted")
    here.this_machine = broken
try:
    code = probing.{how}(os.environ, 20.0, {reported})
    print(json.dumps([reported, code]))
except CollbenchError as error:
    print(json.dumps([reported, error.exit_code, str(error)]))
"""


def ranks(folder, n, then="return 0", broken=None, *, files=False):
    """Return the reports of `n` ranks of a launch on this host, about their machines or about files."""
    how, reported = ("at_rank_0", "lambda: report([])") if files else ("together", "report")
    text = RANK.replace("{then}", then).replace("{how}", how).replace("{reported}", reported)
    processes = []
    for rank in range(n):
        info = LaunchInfo("local", rank, n, rank, n, f"ipc://{folder}/control", token="t", secret="token")
        more = {"COLLBENCH_WORKER": to_variable(info), **({"BROKEN": "1"} if rank == broken else {})}
        line = [sys.executable, "-c", text]
        processes.append(subprocess.Popen(line, cwd=ROOT, env=environment(more), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    return [json.loads(process.communicate(timeout=60)[0]) for process in processes]


@pytest.mark.parametrize("environ", [{}, {"SLURM_JOB_ID": "8", "SLURM_JOB_NODELIST": "n[1-2]"}], ids=["alone", "allocation without srun"])
def test_without_a_launcher_this_machine_is_probed(environ):
    reported = []
    assert together(environ, 5.0, lambda machines: reported.append(machines) or 7) == 7
    assert [[machine.hostname for machine in machines] for machines in reported] == [[socket.gethostname()]]
    assert [[machine.system for machine in machines] for machines in reported] == [[this_machine().system]]


def test_an_invalid_launch_is_one_sentence():
    with pytest.raises(UsageError, match="COLLBENCH_WORKER"):
        together({"COLLBENCH_WORKER": "{}"}, 5.0, lambda machines: 0)


def test_three_ranks_of_a_host_are_one_machine_reported_once(tmp_path):
    first, *others = ranks(tmp_path, 3, "return 1")
    assert first == [[[socket.gethostname()]], 1]
    assert others == [[[], 1], [[], 1]]


def test_files_need_no_launcher():
    assert at_rank_0({}, 5.0, lambda: 7) == 7
    assert not launched({}) and not launched({"SLURM_JOB_ID": "8", "SLURM_JOB_NODELIST": "n[1-2]"})


@pytest.mark.system
@pytest.mark.parametrize(("then", "first", "others"), [
    ("return 1", [[[]], 1], [[], 1]),  # they are read once
    ('raise UsageError("x is empty")', [[[]], 2, "x is empty"], [[], 2]),
], ids=["read", "not readable"])  # fmt: skip
def test_files_are_read_once_and_all_ranks_return_the_code(then, first, others, tmp_path):
    of_rank_0, of_rank_1 = ranks(tmp_path, 2, then, files=True)
    assert (of_rank_0, of_rank_1[:2]) == (first, others)


def test_an_error_at_rank_0_ends_all_ranks_with_its_code(tmp_path):
    first, other = ranks(tmp_path, 2, 'raise UsageError("--svg x cannot be written")')
    assert first[1:] == [2, "--svg x cannot be written"]
    assert other[1] == 2 and str(other[2]).endswith("--svg x cannot be written")


@pytest.mark.system
def test_an_error_of_a_probe_ends_all_ranks_with_its_code(tmp_path):
    assert {(tuple(actual), code) for actual, code, _ in ranks(tmp_path, 2, broken=0)} == {((), 2)}
