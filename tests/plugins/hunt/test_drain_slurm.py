"""`--apply` on a real Slurm: the node is drained, the printed command returns it to service; above the limit no node is drained."""

import os
import re
import shlex
from contextlib import ExitStack
from pathlib import Path

import pytest

from collbench.errors import UsageError
from collbench.plugins.hunt.drain import apply, check_apply, parse_cap
from collbench.plugins.hunt.managers import nodes, run_here
from collbench.plugins.hunt.recommendation import recommendation
from tests.cli.command import until
from tests.conftest import enter
from tests.plugins.hunt.verdicts import about, suspect, undo_lines, verdict
from tests.testbeds import SlurmBed

pytestmark = [pytest.mark.slurm, pytest.mark.long]


@pytest.fixture(scope="module")
def bed():
    with ExitStack() as stack:
        yield enter(stack, SlurmBed(nodes=6))


@pytest.fixture(autouse=True)
def all_nodes_in_service(bed):
    yield
    for name in bed.nodes:
        if "DRAIN" in node(bed, name)[0]:
            bed.must("scontrol", "update", f"NodeName={name}", "State=RESUME")


def environment(bed):
    """Return the environment of a job's first rank."""
    return {**os.environ, **bed.environment(), "SLURM_JOB_ID": "1"}


def drained(bed, *places, **changes):
    """Return the recommendation of a hunt on the test bed that confirmed these nodes."""
    found = verdict(*(suspect("node", place) for place in places), names=tuple(bed.nodes), **changes)
    return recommendation(found, about(run=Path("runs/a hunt's")))


def applied(bed, recommended, cap="2%"):
    return apply(recommended, parse_cap(cap), environment(bed))


def node(bed, name):
    """Return the node's state and its reason from `scontrol show node`, without NOT_RESPONDING."""
    shown = bed.must("scontrol", "--oneliner", "show", "node", name)
    state, reason = re.search(r" State=(\S+)", shown), re.search(r" Reason=(.*?) \[", shown)
    assert state, shown
    return state[1].replace("+NOT_RESPONDING", ""), reason[1] if reason else ""


def states(bed):
    return [node(bed, name)[0] for name in bed.nodes]


def test_slurm_lists_its_nodes(bed):
    assert check_apply(environment(bed)) == "slurm"
    found, why = nodes("slurm", environment(bed), run_here)
    assert found is not None and [each.name for each in found] == bed.nodes and not any(each.drained or each.reason for each in found), why


def test_a_confirmed_node_is_drained_and_the_printed_commands_do_and_undo_it_in_a_shell(bed):
    recommended, name = drained(bed, 2), bed.nodes[2]
    done = applied(bed, recommended)
    state, reason = node(bed, name)
    assert (state, reason) == ("IDLE+DRAIN", recommended["drains"][0]["reason"]), done.lines()
    assert reason.startswith(f"[collbench] CB6101 {name} ") and reason.endswith("run a hunt?s")
    assert bed.call(["sinfo", "--noheader", "--states=drain", "--format=%N %E"]).stdout.strip() == f"{name} {reason}"
    assert [each for each in states(bed) if "DRAIN" in each] == ["IDLE+DRAIN"]
    assert undo_lines(done) == [f"scontrol update NodeName={name} State=RESUME"] and done.lines()[1].endswith(undo_lines(done)[0])
    bed.must("bash", "-c", undo_lines(done)[0])
    assert node(bed, name)[0] == "IDLE"
    drain = drained(bed, 3)["drains"][0]
    bed.must("bash", "-c", drain["line"])
    assert node(bed, bed.nodes[3]) == ("IDLE+DRAIN", drain["reason"])
    bed.must("bash", "-c", drain["undo"])
    assert node(bed, bed.nodes[3])[0] == "IDLE"


def test_a_node_that_collbench_drained_before_counts(bed):
    applied(bed, drained(bed, 1))
    done = applied(bed, drained(bed, 4))
    assert "1 node already drained" in done.refused and "--max-drain 2% allows 1 of 6" in done.refused
    assert states(bed).count("IDLE+DRAIN") == 1
    bed.must("scontrol", "update", f"NodeName={bed.nodes[1]}", "Reason=a disk")  # no longer collbench's reason
    assert undo_lines(applied(bed, drained(bed, 4))) == [f"scontrol update NodeName={bed.nodes[4]} State=RESUME"]


def running(bed, job):
    return bed.must("squeue", "--noheader", "--format=%T", "--job", job).strip() == "RUNNING"


def test_a_node_on_which_the_hunt_itself_still_runs_is_drained_too(bed):
    script = Path(bed.folder) / "sleeps"
    script.write_text("#!/bin/sh\nsleep 60\n")
    job = bed.must("sbatch", "--parsable", "--output=/dev/null", "-w", bed.nodes[0], "-N1", str(script)).strip()
    try:
        until(lambda: running(bed, job), "the job", 20)
        applied(bed, drained(bed, 0))
        assert node(bed, bed.nodes[0])[0] in ("MIXED+DRAIN", "ALLOCATED+DRAIN")
        assert running(bed, job)
    finally:
        bed.must("scancel", job)
        until(lambda: node(bed, bed.nodes[0])[0] in ("IDLE", "IDLE+DRAIN"), "the job's end", 30)


def test_a_second_apply_and_a_node_unknown_to_slurm_change_nothing(bed):
    recommended = recommendation(verdict(suspect("node", 0, partners=()), names=("elsewhere",)), about())
    done = applied(bed, recommended)
    assert done.lines()[0].startswith("elsewhere is not drained")
    line = shlex.split(recommended["drains"][0]["line"])
    assert "Invalid node name" in bed.call(line).stderr + bed.call(line).stdout and set(states(bed)) == {"IDLE"}
    recommended = drained(bed, 2)
    applied(bed, recommended)
    again = applied(bed, recommended)
    assert [each["action"] for each in again.entries] == ["left"] and recommended["drains"][0]["reason"] in again.lines()[0]


def test_without_permission_the_error_has_the_command(bed):
    recommended = drained(bed, 5)

    def as_nobody(words, env):
        return run_here(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *words], env)

    bed.must("chmod", "a+rx", str(bed.folder))
    done = apply(recommended, parse_cap("2%"), environment(bed), run=as_nobody)
    assert undo_lines(done) == [] and set(states(bed)) == {"IDLE"}
    assert f"{bed.nodes[5]} is not drained" in done.lines()[0], done.lines()
    assert re.search(r"Access/permission denied|Invalid user id", done.lines()[0]), done.lines()
    assert done.lines()[0].endswith(recommended["drains"][0]["line"])


def test_an_unreachable_slurm_is_reported_before_the_first_measurement(tmp_path):
    (tmp_path / "slurm.conf").write_text("ClusterName=away\nSlurmctldHost=localhost(127.0.0.1)\nSlurmctldPort=1\nAuthType=auth/munge\n"
                                         "NodeName=n1\nPartitionName=main Nodes=n1\nMessageTimeout=2\nSlurmctldTimeout=3\n")  # fmt: skip
    env = {**os.environ, "SLURM_CONF": str(tmp_path / "slurm.conf"), "SLURM_JOB_ID": "1"}
    with pytest.raises(UsageError, match=r"--apply .*scontrol"):
        check_apply(env)
