"""A real Slurm cluster without systemd: across the hosts of a test bed, or with all its nodes on this machine."""

import os
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.testbeds.bed import Bed, Finished, Missing
from tests.testbeds.hosts import Hosts

# TmpFS: slurmd processes that share /tmp would share PMIx's folders in it too. KillWait: the default of 30 s is a test's time limit.
CONFIGURATION = """\
ClusterName=testbed
FirstJobId={first}
SlurmctldHost={machine}({controller})
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
TmpFS={folder}/tmp/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/log/slurmctld
SlurmdLogFile={folder}/log/%n
SlurmdParameters=config_overrides
SlurmctldTimeout=30
SlurmdTimeout=30
InactiveLimit=0
KillWait=3
ReturnToService=2
MpiDefault=none
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,batch_sched_delay=0
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/none
"""

RUNNING = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING")

_IDLE_WITHIN_S = 60
_CUT = "mpi/pmi2: value not properly terminated in client request"
_SHORT_ADDRESSES = {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp"}


class SlurmBed(Bed):
    """`nodes` nodes with `cpus` each and, optionally, `gpus` that are only device files (`--gres=gpu:2` sets CUDA_VISIBLE_DEVICES).

    Across hosts there is one node per host, in its namespaces. On this machine alone the nodes' names do not resolve.
    """

    tools = ("munged", "slurmctld", "slurmd", "srun", "sinfo")
    package = "slurm-wlm munge libpmix2 libpmix-dev"

    def __init__(self, hosts: Hosts | None = None, nodes: int = 2, cpus: int = 2, gpus: int = 0) -> None:
        self.hosts, self.cpus, self.gpus = hosts, cpus, gpus
        self.count = hosts.count if hosts else nodes

    @property
    def nodes(self) -> list[str]:
        return self.hosts.names if self.hosts else [f"cb{self.number}n{index}" for index in range(1, self.count + 1)]

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the environment in which Slurm's commands find this cluster; MPICH uses TCP through libfabric (see `srun`)."""
        link = {"FI_TCP_IFACE": "eth0"} if self.hosts else {}
        return super().environment({**_SHORT_ADDRESSES, **link, "SLURM_CONF": str(self.folder / "slurm.conf"), **(more or {})})

    def srun(self, arguments: Sequence[str], command: Sequence[str], timeout: float = 60, env: Mapping[str, str] | None = None) -> Finished:
        """Run `srun ARGUMENTS COMMAND`; tasks see the caller's environment.

        With UCX, MPICH sends 4096 bytes to the other ranks: its address, and the memory behind it.
        In hex a piece of that may exceed a line of Slurm's pmi2; then MPI_Init fails, and the step is started again.
        With libfabric it sends only the address.
        """
        done = self.call(["srun", *arguments, *command], timeout, env)
        for _ in range(3):
            if done.returncode == 0 or _CUT not in done.stderr:
                break
            done = self.call(["srun", *arguments, *command], timeout, env)
        return done

    def sbatch(self, script: str, arguments: Sequence[str] = (), timeout: float = 60, env: Mapping[str, str] | None = None) -> Finished:
        """Submit a batch script and wait for its end; the result has its output and its exit code, 124 if it took too long."""
        written = self.folder / f"job-{time.monotonic_ns()}"
        written.write_text(script if script.startswith("#!") else f"#!/bin/sh\n{script}\n")
        output = written.with_suffix(".out")
        command = ["sbatch", "--parsable", f"--output={output}", *arguments, str(written)]
        submitted = self.call(command, env=env)
        if submitted.returncode:
            return submitted
        code = self._ended(submitted.stdout.strip(), timeout)
        return Finished(command, code, output.read_text() if output.exists() else "", submitted.stderr)

    def run(self, host: str | int, command: Sequence[str], timeout: float = 60, env: Mapping[str, str] | None = None) -> Finished:
        """Run without Slurm: on a host of the test bed, or on this machine if there are none."""
        return self.call(self.hosts.on(host, command) if self.hosts else command, timeout, env)

    def up(self) -> None:
        for name in ("state", "log", *(f"{kind}/{node}" for kind in ("spool", "tmp") for node in self.nodes)):
            (self.folder / name).mkdir(parents=True)
        self._munge()
        self._configure()
        self.must("slurmctld", "-c")
        for index, node in enumerate(self.nodes):
            command = ["slurmd", "-c", "-N", node]
            self.must(*(self.hosts.on(index, command) if self.hosts else command))
        self._wait()

    def down(self) -> None:
        """Cancel all jobs: tasks started without the caller's environment do not have the test bed's mark."""
        if not (self.folder / "slurmctld.pid").exists():
            return
        self.call(["scancel", "--full", "--user=root"], timeout=5)
        until = time.monotonic() + 6
        while time.monotonic() < until and self.call(["squeue", "--noheader"], timeout=5).stdout.strip():
            time.sleep(0.1)

    def _ended(self, job: str, timeout: float) -> int:
        """Return the job's exit code; polled here, since `sbatch --wait` polls only every ten seconds."""
        until = time.monotonic() + timeout
        while time.monotonic() < until:
            words = dict(word.partition("=")[::2] for word in self.call(["scontrol", "--oneliner", "show", "job", job]).stdout.split())
            if words["JobState"] not in RUNNING:
                code, _, death = words["ExitCode"].partition(":")
                return 128 + int(death) if int(death) else int(code)
            time.sleep(0.05)
        self.call(["scancel", job])
        return 124

    def _munge(self) -> None:
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        options = {
            "key-file": "munge.key", "socket": "munge.socket", "pid-file": "munged.pid", "log-file": "log/munged",
            "seed-file": "munge.seed",
        }  # fmt: skip
        self.must("munged", "--force", *(f"--{option}={self.folder / name}" for option, name in options.items()))

    def _configure(self) -> None:
        port = 12000 + 20 * self.number  # below the range of ports for outgoing connections
        machine = socket.gethostname().partition(".")[0]
        controller = self.hosts.gateway if self.hosts else "127.0.0.1"
        text = CONFIGURATION.format(first=_first_job(), machine=machine, controller=controller, port=port, folder=self.folder)
        addresses = self.hosts.addresses if self.hosts else ["127.0.0.1"] * self.count
        if self.hosts and self.hosts.family == "IPv6":
            text += "CommunicationParameters=EnableIPv6,DisableIPv4\n"
        for index, (node, address) in enumerate(zip(self.nodes, addresses, strict=True), 1):
            text += f"NodeName={node} NodeHostname={node if self.hosts else machine} NodeAddr={address} Port={port + index} "
            text += f"CPUs={self.cpus} Boards=1 Sockets=1 CoresPerSocket={self.cpus} ThreadsPerCore=1 RealMemory=2000{self._gres()}\n"
        text += f"PartitionName=main Nodes={','.join(self.nodes)} Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES\n"
        if self.gpus:
            text += "GresTypes=gpu\n"
            (self.folder / "gres.conf").write_text("".join(self._fake_gpus(node) for node in self.nodes))
        (self.folder / "slurm.conf").write_text(text)

    def _gres(self) -> str:
        return f" Gres=gpu:h100:{self.gpus}" if self.gpus else ""

    def _fake_gpus(self, node: str) -> str:
        for index in range(self.gpus):
            device = Path(f"{self.folder}/gpu{index}")
            if not device.exists():
                os.mknod(device, 0o20666, os.makedev(1, 3))  # another /dev/null
        return f"NodeName={node} Name=gpu Type=h100 File={self.folder}/gpu[0-{self.gpus - 1}]\n"

    def _wait(self) -> None:
        until = time.monotonic() + _IDLE_WITHIN_S
        while time.monotonic() < until:
            if self.call(["sinfo", "--noheader", "--states=idle", "--format=%D"], timeout=10).stdout.strip() == str(self.count):
                return
            time.sleep(0.05)
        logs = "\n".join(path.read_text()[-600:] for path in sorted((self.folder / "log").iterdir()))
        raise Missing(f"the {self.count} Slurm nodes did not become idle within {_IDLE_WITHIN_S} s: {logs}")


def _first_job() -> int:
    """Return a number that no earlier test bed used, since the gate identifies a job by cluster and number. Slurm counts to 67,108,863."""
    return 1 + int(time.time()) % 60_000_000
