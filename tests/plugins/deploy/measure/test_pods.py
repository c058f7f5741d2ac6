"""The pods of an emitted manifest, each on a host of its own: their own command lines and environment, and the log read back."""

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from collbench.plugins.deploy.job import Value, job_of
from collbench.plugins.deploy.kinds.kubernetes import KIND, LOST
from collbench.plugins.importers.pod_log import BEGIN, END
from collbench.results.reader import Run, read_run
from tests.cli.command import BIN, environment, one_sentence, run_here, until
from tests.launchers.stored import measured
from tests.plugins.deploy.manifests import Pod, documents, pods
from tests.plugins.deploy.recorded import program
from tests.testbeds import Hosts

pytestmark = [pytest.mark.hosts, pytest.mark.long]

UID = "6f1d2a34-5b6c-4d7e-8f90-123456789abc"
FIELDS = {"metadata.labels['batch.kubernetes.io/controller-uid']": UID, "metadata.name": "bench-{index}-x7k2p"}
SWEEP = ("allreduce", "--sizes", "1K", "--backend", "gloo", "-n", "3", "-w", "1")


@pytest.fixture
def bed(hosts: Callable[..., Hosts]) -> Hosts:
    return hosts(2, "1gbit")


def manifest(said: dict[str, Value], *command: str) -> Any:
    known = {"image": "docker.io/example/collbench:1", "program": str(BIN / "collbench"), "ranks-per-node": 2}
    return documents(KIND.render(job_of(KIND, command or SWEEP, {**known, **said})))[-1]


def known_as(bed: Hosts, name: str) -> None:
    """From now on the hosts find rank 0's pod by this name, as pods do by a headless Service."""
    with (bed.folder / "hosts").open("a") as file:
        file.write(f"{bed.addresses[0]} {name}\n")


def start(bed: Hosts, pod: Pod, host: int, folder: Path) -> subprocess.Popen[str]:
    """As the kubelet does; the hosts have one /tmp, which containers have not: what is written there goes into the folder, by host."""
    return bed.start(host, [word.replace(LOST, f"{folder}/lost-{host}") for word in pod.words], environment(pod.env))


def ended(pod: subprocess.Popen[str]) -> str:
    out, err = pod.communicate(timeout=90)
    return out + err


def read_back(log: str, folder: Path) -> Run:
    (folder / "pod.log").write_text(log)
    done = run_here(folder, "import", "pod.log", "--out", "run")
    assert done.returncode == 0, done.stderr + log
    assert "doubtful" not in done.stderr
    return read_run(folder / "run")


class TestJob:
    @pytest.mark.timeout(150)
    def test_pods_join_by_a_name_that_resolves_late_and_their_log_is_a_run(self, bed: Hosts, tmp_path: Path) -> None:
        first, second = pods(manifest({"name": "late"})["spec"]["template"]["spec"]["containers"][0], 2, FIELDS)
        running = [start(bed, second, 1, tmp_path), start(bed, first, 0, tmp_path)]
        with pytest.raises(subprocess.TimeoutExpired):
            running[0].wait(3)  # the name does not resolve yet: the rank waits
        known_as(bed, "late-0.late")
        others, log = (ended(pod) for pod in running)
        assert [pod.returncode for pod in running] == [0, 0], others + log
        assert BEGIN not in others and f"{END} 0 -----" in log
        found = read_back(log, tmp_path)
        assert measured(found) == {"gloo": (4, 2, 0)}

    @pytest.mark.timeout(150)
    def test_a_volume_takes_the_run_folder_of_rank_0_alone(self, bed: Hosts, tmp_path: Path) -> None:
        volume = {"name": "kept", "volume": "claim", "runs": str(tmp_path / "runs")}
        known_as(bed, "kept-0.kept")
        both = pods(manifest(volume)["spec"]["template"]["spec"]["containers"][0], 2, FIELDS)
        running = [start(bed, pod, host, tmp_path) for host, pod in enumerate(both)]
        logs = [ended(pod) for pod in running]
        assert [pod.returncode for pod in running] == [0, 0], logs
        assert [path.name for path in (tmp_path / "runs").iterdir()] == ["bench-0-x7k2p"]
        found = read_run(tmp_path / "runs" / "bench-0-x7k2p")
        assert (found.info["launcher"], found.info["launcher_facts"]["kubernetes"]) == ("kubernetes", "indexed Job")
        assert measured(found) == {"gloo": (4, 2, 0)} and UID not in str(found.info)

    @pytest.mark.timeout(150)
    def test_a_pod_that_is_ended_hands_it_on_and_marks_the_end(self, bed: Hosts, tmp_path: Path) -> None:
        known_as(bed, "long-0.long")
        command = (*SWEEP[:5], "--max-time", "60", "-n", "100000000", "--timeout", "20")
        both = pods(manifest({"name": "long"}, *command)["spec"]["template"]["spec"]["containers"][0], 2, FIELDS)
        running = [start(bed, pod, host, tmp_path) for host, pod in enumerate(both)]
        until((tmp_path / "lost-0" / "run.json").exists, "rank 0's run folder")
        running[0].send_signal(signal.SIGTERM)
        log, others = (ended(pod) for pod in running)
        assert running[0].returncode == 143, log + others
        assert f"{END} 143 -----" in log and "SIGTERM" in log


@pytest.mark.timeout(150)
def test_pods_of_a_trainjob_meet_without_torchrun(bed: Hosts, tmp_path: Path) -> None:
    known_as(bed, "train-node-0-0.train")
    actual = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "2", "PET_MASTER_ADDR": "train-node-0-0.train", "PET_MASTER_PORT": "29500"}
    both = pods(manifest({"kind": "trainjob", "name": "train"})["spec"]["trainer"], 2, FIELDS)
    of_rank = [Pod(pod.words, {**pod.env, **actual, "PET_NODE_RANK": str(host)}) for host, pod in enumerate(both)]
    running = [start(bed, pod, host, tmp_path) for host, pod in enumerate(of_rank)]
    log, others = (ended(pod) for pod in running)
    assert [pod.returncode for pod in running] == [0, 0], log + others
    assert BEGIN not in others
    assert measured(read_back(log, tmp_path)) == {"gloo": (4, 2, 0)}


@pytest.mark.timeout(150)
def test_the_launcher_of_an_mpijob_starts_the_workers_ranks(bed: Hosts, openmpi_python: str, tmp_path: Path) -> None:
    """Its own command line; the bed's ssh takes the place of sshd in the workers, and a file that of the operator's."""
    (tmp_path / "hostfile").write_text("".join(f"{name} slots=1\n" for name in bed.names))
    program(tmp_path, "collbench", f'#!/bin/sh\nexec {openmpi_python} -m collbench "$@"\n')
    said: dict[str, Value] = {"kind": "mpijob", "program": f"{tmp_path}/collbench", "ranks-per-node": 1, "env": ("OMP_NUM_THREADS=1",)}
    spec = manifest(said, *SWEEP[:3], "--backend", "mpi", *SWEEP[5:])["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]
    (pod,) = pods(spec["containers"][0], 1, FIELDS)
    reach = {"PRTE_MCA_plm_ssh_agent": bed.rsh, "PRTE_MCA_prte_if_include": "eth0", "OMPI_MCA_btl_tcp_if_include": "eth0"}
    path = f"{Path(openmpi_python).parent}:/usr/sbin:/usr/bin:/sbin:/bin"
    words = [word.replace("/etc/mpi/hostfile", f"{tmp_path}/hostfile") for word in pod.words]
    launcher = start(bed, Pod(words, {**reach, "PATH": path}), 0, tmp_path)
    log = ended(launcher)
    assert launcher.returncode == 0, log
    assert measured(read_back(log, tmp_path)) == {"mpi": (2, 2, 0)}


def test_a_pod_of_an_indexed_job_without_its_variables_measures_nothing(tmp_path: Path) -> None:
    said = one_sentence(run_here(tmp_path, *SWEEP, env={"JOB_COMPLETION_INDEX": "1"}))
    assert "COLLBENCH_PODS" in said and "MASTER_ADDR" in said
    assert not list(tmp_path.iterdir())
