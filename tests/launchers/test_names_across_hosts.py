"""Hosts as sites have them: the own name at 127.0.1.1, IPv6 alone, both families. Every launcher starts, and no library is open to all."""

import json
import re
import shlex
import shutil
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

import collbench
from collbench.launch.software import digest_of, own
from tests.cli.command import BIN, PROGRAM, Finished, environment
from tests.conftest import enter, sample
from tests.launchers.stored import measured, reached, stored
from tests.testbeds import Hosts, SlurmBed

pytestmark = [pytest.mark.slurm, pytest.mark.hosts, pytest.mark.timeout(150)]

TORCHRUN, MPIEXEC = BIN / "torchrun", BIN / "mpiexec"
PORT = "29533"
OVER_TCP = {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "eth0"}
PACKAGE = Path(collbench.__file__).parent
EVERYWHERE = r"rank 0 listens at every address of its host, because its name '\w+' resolves to loopback there \(127\.0\.1\.1\)"


@pytest.fixture(scope="module")
def debian():
    """Slurm on two hosts with their own name at 127.0.1.1 in /etc/hosts, as the installers of Debian and Ubuntu write it."""
    with ExitStack() as stack:
        yield enter(stack, SlurmBed(enter(stack, Hosts(2, "1gbit", own_name_at="127.0.1.1"))))


@pytest.fixture(scope="module")
def ipv6():
    with ExitStack() as stack:
        yield enter(stack, SlurmBed(enter(stack, Hosts(2, "1gbit", family="IPv6"))))


@pytest.fixture(scope="module")
def dual():
    with ExitStack() as stack:
        yield enter(stack, Hosts(2, "1gbit", family="dual"))


def short(folder, *words):
    return [*PROGRAM, *(words or ("allreduce", "--backend", "gloo")), "--sizes", "1K", "--out", str(folder / "run")]


def hosts_of(bed):
    assert bed.hosts
    return bed.hosts


def on_both(bed, lines, env=lambda host: {}):
    started = [bed.start(host, ["timeout", "60", *lines(host)], environment(env(host))) for host in range(2)]
    ends = [one.communicate(timeout=70) for one in started]
    return [Finished(one.args, one.returncode, *end) for one, end in zip(started, ends, strict=True)]


def by_hand(bed, folder, master, *words):
    variables = {"WORLD_SIZE": "2", "MASTER_ADDR": master, "MASTER_PORT": PORT}
    return on_both(bed, lambda host: short(folder, *words), lambda host: {**variables, "RANK": str(host)})


def by_torchrun(bed, folder, kind, master):
    bracketed = f"[{master}]" if ":" in master else master
    how = {
        "static": "--rdzv-backend static --master-addr {0} --master-port {2} --node-rank {3}",
        "c10d": "--rdzv-backend c10d --rdzv-endpoint {1}:{2}",
    }[kind]
    agent = [str(TORCHRUN), "--nnodes", "2", "--nproc-per-node", "1"]
    return on_both(bed, lambda host: [*agent, *how.format(master, bracketed, PORT, host).split(), *short(folder)[1:]])


@pytest.mark.long
@pytest.mark.skipif(not TORCHRUN.exists(), reason="no torch beside this Python")
@pytest.mark.parametrize("kind", sample(["static", "c10d"], 1))
@pytest.mark.parametrize("site", ["debian", "ipv6"])
def test_torchrun(site, kind, request, tmp_path):
    bed = hosts_of(request.getfixturevalue(site))
    done = by_torchrun(bed, tmp_path, kind, bed.names[0] if site == "debian" else bed.addresses[0])
    assert [one.returncode for one in done] == [0, 0], done
    assert sorted(addresses(done[0], tmp_path)) == bed.addresses


def addresses(done, folder):
    return [member["address"] for member in stored(done, folder).info["rank_map"]]


@pytest.mark.long
class TestOwnNameAtLoopback:
    def test_doctor(self, debian):
        done = debian.srun(["-N2"], [*PROGRAM, "doctor", "--timeout", "20"], env=environment())
        assert done.returncode == 0 and "examined 2 machines" in done.stdout, done.stderr

    def test_doctor_reports_it_before_a_launch(self, debian):
        line = [*PROGRAM, "doctor", "--launch", "--format", "json"]
        actual = json.loads(debian.srun(["-N2", "--mpi=pmi2"], line, env=environment()).stdout)
        (problem,) = actual["problems"]
        first, second = hosts_of(debian).names
        assert problem["severity"] == "note" and f"'{first}'" in problem["what"]
        assert "127.0.1.1" in problem["what"] and hosts_of(debian).addresses[0] in problem["what"]
        assert [(one["name"], one["own"], one["addresses"]) for one in actual["names"]] == [
            (first, True, ["127.0.1.1"]), (second, False, [hosts_of(debian).addresses[1]]),
        ]  # fmt: skip

    def test_a_loopback_master_address_is_rejected_at_once(self, debian, tmp_path):
        began = time.monotonic()
        done = debian.srun(["-N2"], short(tmp_path), env=environment({"MASTER_ADDR": "127.0.0.1"}))
        assert done.returncode == 2 and time.monotonic() - began < 15
        assert "MASTER_ADDR=127.0.0.1 " in done.stderr

    @pytest.mark.skipif(not MPIEXEC.exists(), reason="no MPICH in this environment: pip install collbench[mpich]")
    def test_mpiexec(self, debian, tmp_path):
        bed = hosts_of(debian)
        line = [str(MPIEXEC), *reached(bed, OVER_TCP, ""), *short(tmp_path, "allreduce", "--backend", "mpi")]
        assert addresses(bed.run(0, line, 60, environment()), tmp_path) == bed.addresses

    def test_srun(self, debian, tmp_path):
        done = debian.srun(["-N2", "--mpi=pmi2"], short(tmp_path, "allreduce", "--backend", "gloo,mpi"), env=environment())
        assert addresses(done, tmp_path) == hosts_of(debian).addresses
        assert re.search(EVERYWHERE, done.stderr)

    @pytest.mark.skipif(not MPIEXEC.exists(), reason="no MPICH in this environment: pip install collbench[mpich]")
    def test_doctor_compares_the_builds_of_hosts_that_meet_over_mpi(self, debian, tmp_path):
        bed, changed = hosts_of(debian), tmp_path / "another"
        shutil.copytree(PACKAGE, changed / "collbench", ignore=shutil.ignore_patterns("__pycache__"))
        with (changed / "collbench" / "units.py").open("a") as file:
            file.write("# changed\n")
        script = (
            f"cd /; [ $PMI_RANK = 1 ] && export PYTHONPATH={changed}; exec {shlex.join([*PROGRAM, 'doctor', '--launch'])} --format json"
        )
        done = bed.run(0, [str(MPIEXEC), *reached(bed, OVER_TCP, ""), "sh", "-c", script], 60, environment())
        assert done.returncode == 1, done.stderr
        actual = json.loads(done.stdout)
        assert [(each["hosts"], each["collbench"]) for each in actual["hosts"]] == [
            ([bed.names[0]], str(own())), ([bed.names[1]], f"{own().version}+{digest_of(changed / 'collbench')}"),
        ]  # fmt: skip


@pytest.mark.long
def test_the_error_of_a_loopback_master_address_has_the_remedy(dual, tmp_path):
    first, second = by_hand(dual, tmp_path, "localhost", "allreduce", "--backend", "gloo", "--timeout", "3")
    assert (first.returncode, second.returncode) == (4, 4)
    assert "127.0.0.1" in first.stderr and "loopback" in first.stderr
    assert "'localhost'" in second.stderr and "MASTER_ADDR" in second.stderr


@pytest.mark.long
class TestIpv6Only:
    @pytest.mark.parametrize("mode", sample(["isolated", "pipelined"], 1))
    def test_srun(self, mode, ipv6, tmp_path):
        words = ("allreduce", "--backend", "gloo,mpi", "--mode", mode)
        done = ipv6.srun(["-N2", "--mpi=pmi2"], short(tmp_path, *words), env=environment())
        assert addresses(done, tmp_path) == hosts_of(ipv6).addresses
        assert measured(stored(done, tmp_path)) == {"gloo": (2, 2, 0), "mpi": (2, 2, 0)}

    def test_messages(self, ipv6, tmp_path):
        done = ipv6.srun(["-N2"], short(tmp_path, "p2p", "--backend", "socket,zmq"), env=environment())
        assert measured(stored(done, tmp_path)) == {"socket": (2, 2, 0), "zmq": (2, 2, 0)}

    def test_several_ranks_per_node(self, ipv6, tmp_path):
        done = ipv6.srun(["-N2"], [*short(tmp_path), "--ranks-per-node", "2"], env=environment())
        assert measured(stored(done, tmp_path)) == {"gloo": (4, 2, 0)}

    def test_open_mpi(self, ipv6, openmpi_python, tmp_path):
        line = [openmpi_python, *short(tmp_path, "allreduce", "--backend", "mpi")[1:]]
        done = ipv6.srun(["-N2", "--mpi=pmix", "--kill-on-bad-exit=1"], line, env=environment())
        assert addresses(done, tmp_path) == hosts_of(ipv6).addresses

    def test_doctor_reports_it(self, ipv6):
        done = ipv6.srun(["-N2", "--mpi=pmi2"], [*PROGRAM, "doctor", "--launch"], env=environment())
        assert done.returncode == 0 and ", ".join(hosts_of(ipv6).names) in " ".join(done.stdout.split("note: ")[1].split())


@pytest.mark.long
class TestBothFamilies:
    MESSAGES = ("p2p", "--backend", "socket,zmq")

    @pytest.mark.parametrize("master", ["name", "IPv6 address"])
    def test_ipv4_is_preferred_unless_the_master_address_chooses(self, master, dual, tmp_path):
        place, wanted = (dual.names[0], dual.ipv4_addresses) if master == "name" else (dual.ipv6_addresses[0], dual.ipv6_addresses)
        assert addresses(by_hand(dual, tmp_path, place, *self.MESSAGES)[0], tmp_path) == wanted

    def test_a_host_without_ipv4_decides(self, dual, tmp_path):
        """Gloo prefers the IPv4 address of an interface, so it cannot connect these hosts."""
        change = ["ip", "address", "{}", f"{dual.ipv4_addresses[1]}/24", "dev", "eth0"]
        dual.run(1, [word.format("del") for word in change])
        try:
            assert addresses(by_hand(dual, tmp_path, dual.names[0], *self.MESSAGES)[0], tmp_path) == dual.ipv6_addresses
            refused, _ = by_hand(dual, tmp_path / "gloo", dual.names[0])
            assert refused.returncode == 2
            assert f"({dual.names[0]} IPv4, {dual.names[1]} IPv6)" in refused.stderr
        finally:
            dual.run(1, [word.format("add") for word in change])


@pytest.mark.long
@pytest.mark.parametrize("words", [("allreduce", "--backend", "gloo"), ("p2p", "--backend", "socket,zmq")], ids=["gloo", "socket, zmq"])
def test_nothing_listens_at_every_address_or_at_one_of_the_other_family(words, dual, tmp_path):
    seen = [set(), set()]
    variables = {"WORLD_SIZE": "2", "MASTER_ADDR": dual.ipv4_addresses[0], "MASTER_PORT": PORT, "COLLBENCH_ITERATIONS": "300"}
    line = ["timeout", "60", *short(tmp_path, *words)]
    ranks = [dual.start(host, line, environment({**variables, "RANK": str(host)})) for host in (0, 1)]
    while any(rank.poll() is None for rank in ranks):
        for host, name in enumerate(dual.names):
            seen[host] |= listening_in(name)
    assert [rank.wait() for rank in ranks] == [0, 0], [rank.communicate() for rank in ranks]
    assert seen == [{address} for address in dual.ipv4_addresses]


def listening_in(namespace):
    """The local addresses of the TCP sockets that listen in a network namespace."""
    line = ["ip", "netns", "exec", namespace, "ss", "--no-header", "--listening", "--tcp", "--numeric"]
    actual = subprocess.run(line, capture_output=True, text=True, timeout=10, check=True).stdout
    return {one.split()[3].rpartition(":")[0] for one in actual.splitlines()}
