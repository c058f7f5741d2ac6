"""torchrun and the mpiexec of MPICH and Intel MPI over two hosts with a link of 1 Gbit/s."""

from pathlib import Path

import pytest

from collbench.results.reader import read_run
from tests.cli.command import BIN, PROGRAM, environment
from tests.conftest import needs_plugin, sample
from tests.launchers.stored import measured, reached, stored

pytestmark = pytest.mark.hosts

TORCHRUN, MPICH = BIN / "torchrun", BIN / "mpiexec"
OVER_THE_LINK = {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "eno1,ens3"}
PORT = "29533"  # the hosts have their own network: no other server listens there


@pytest.fixture
def bed(hosts):
    """Two hosts with differently named interfaces, different numbers of them, and bridges that lead nowhere."""
    return hosts(2, "1gbit", unlike=True)


def short(folder, size="1K"):
    return [*PROGRAM[1:], "allreduce", "--sizes", size, "--out", str(folder / "run")]


@pytest.mark.skipif(not TORCHRUN.exists(), reason="no torch beside this Python")
@needs_plugin("libraries")
def test_hosts_with_different_interface_names(bed, tmp_path):
    """Every exchange that the ranks make has one name on both hosts, and no library chooses an interface that leads nowhere."""
    variables = {"WORLD_SIZE": "2", "MASTER_ADDR": bed.addresses[0], "MASTER_PORT": PORT}
    line = ["timeout", "60", *PROGRAM, "p2p", "--sizes", "1K", "--backend", "gloo,socket,zmq", "--out", str(tmp_path / "run")]
    ranks = [bed.start(host, line, environment({**variables, "RANK": str(host)})) for host in (0, 1)]
    said = [rank.communicate(timeout=70) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
    found = read_run(tmp_path / "run")
    assert measured(found) == {"gloo": (2, 2, 0), "socket": (2, 2, 0), "zmq": (2, 2, 0)}
    assert [member["address"] for member in found.info["rank_map"]] == bed.addresses
    assert {row.ceiling.limited_by for row in found.rows if row.ceiling} == {f"NIC eno1 1 Gb/s, TCP of {bed.names[0]}"}


@pytest.mark.skipif(not TORCHRUN.exists(), reason="no torch beside this Python")
@pytest.mark.long
@pytest.mark.timeout(150)
@pytest.mark.parametrize("meeting", sample(["static", "c10d"], 1))
def test_torchrun(meeting, bed, tmp_path):
    first, places = bed.addresses[0], {"static": "--master-addr {0} --master-port {1} --node-rank {2}", "c10d": "--rdzv-endpoint {0}:{1}"}
    agents = []
    for host in range(2):
        place = places[meeting].format(first, PORT, host).split()
        line = [str(TORCHRUN), "--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", meeting, *place, *short(tmp_path)]
        agents.append(bed.start(host, ["timeout", "60", *line], environment()))
    said = [agent.communicate(timeout=70) for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], said
    assert "allreduce" in "".join(out for out, _ in said)
    found = read_run(tmp_path / "run")
    assert (found.info["launcher"], sorted(found.info["hosts"])) == ("torchrun", sorted(bed.names))
    assert measured(found)["gloo"] == (2, 2, 0) and "torchrun cannot start MPI" in str(measured(found)["mpi"])
    assert {row.ceiling.limited_by for row in found.rows if row.ceiling} == {f"NIC eno1 1 Gb/s, TCP of {bed.names[0]}"}


@pytest.mark.long
@pytest.mark.skipif(not MPICH.exists(), reason="no MPICH in this environment: pip install collbench[mpich]")
class TestMpiexec:
    def launch(self, bed, line, env, timeout=60):
        return bed.run(0, [str(MPICH), *reached(bed, env, "eno1"), PROGRAM[0], *line], timeout, environment())

    @pytest.mark.often
    def test_ranks_meet_over_mpi_itself(self, bed, tmp_path):
        found = stored(self.launch(bed, short(tmp_path), OVER_THE_LINK), tmp_path)
        assert measured(found) == {"mpi": (2, 2, 0), "gloo": (2, 2, 0)}
        assert [member["address"] for member in found.info["rank_map"]] == bed.addresses

    def test_a_master_address_is_used(self, bed, tmp_path):
        actual = {**OVER_THE_LINK, "MASTER_ADDR": bed.addresses[0], "MASTER_PORT": PORT}
        found = stored(self.launch(bed, [*short(tmp_path), "--backend", "mpi"], actual), tmp_path)
        assert measured(found) == {"mpi": (2, 2, 0)}

    def test_bytes_on_another_path_are_not_a_link_measurement(self, bed, tmp_path):
        """These hosts share a memory, and MPICH finds it: ten and more times the link's rate."""
        found = stored(self.launch(bed, [*short(tmp_path, "4M"), "--backend", "mpi"], {}), tmp_path)
        (row,) = found.rows
        assert row.busbw_bytes_per_s and row.busbw_bytes_per_s > 125e6
        assert "above_bound" in row.flags and row.percent_of_ceiling is None


@pytest.mark.long
@pytest.mark.skipif(not TORCHRUN.exists(), reason="no torch beside this Python")
def test_an_interface_of_one_host_only(bed, tmp_path):
    """Gloo reports the host that lacks it, also if rank 0 is on another host."""
    assert bed.run(0, ["ip", "link", "add", "only1", "type", "bridge"]).returncode == 0
    assert bed.run(0, ["ip", "address", "add", "10.98.0.1/24", "dev", "only1"]).returncode == 0
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": bed.addresses[0], "MASTER_PORT": PORT, "GLOO_SOCKET_IFNAME": "only1"}
    line = ["timeout", "60", *PROGRAM, *short(tmp_path)[2:], "--backend", "gloo"]
    ranks = [bed.start(host, line, environment({**place, "RANK": str(host)})) for host in range(2)]
    said = "".join(err for _, err in [rank.communicate(timeout=70) for rank in ranks])
    assert [rank.returncode for rank in ranks] == [2, 2]
    assert f"GLOO_SOCKET_IFNAME=only1 names no interface of {bed.names[1]} (" in said and "Traceback" not in said


@pytest.mark.impi
class TestMpiexecOfIntelMpi:
    """Its libfabric chooses TCP between the hosts; it does not find the memory that they share."""

    def launch(self, bed, python, line, env):
        mpiexec = str(Path(python).parent / "mpiexec")
        return bed.run(0, [mpiexec, *reached(bed, env, "eno1"), python, *line], 80, environment({"COLLBENCH_ITERATIONS": "10"}))

    @pytest.mark.parametrize("more", [{}, {"MASTER_ADDR": "first", "MASTER_PORT": PORT}], ids=["over MPI itself", "MASTER_ADDR"])
    def test_ranks_meet(self, more, bed, impi_python, tmp_path):
        actual = {"FI_PROVIDER": "tcp", **more, **({"MASTER_ADDR": bed.addresses[0]} if more else {})}
        found = stored(self.launch(bed, impi_python, [*short(tmp_path), "--backend", "mpi"], actual), tmp_path)
        assert measured(found) == {"mpi": (2, 2, 0)}
        assert [member["address"] for member in found.info["rank_map"]] == bed.addresses
        assert (found.info["launcher_facts"], found.info["backends"]["mpi"]["mpi"][:9]) == ({"mpirun": "Intel MPI"}, "Intel MPI")
        assert found.info["environment"]["FI_PROVIDER"] == "tcp"

    @pytest.mark.parametrize("provider", ["verbs", "nonsense"])
    def test_a_provider_that_these_hosts_lack_ends_the_launch(self, provider, bed, impi_python, tmp_path):
        """The library ends the ranks in MPI_Init; CB2807 of the doctor reports it before."""
        done = self.launch(bed, impi_python, [*short(tmp_path), "--backend", "mpi"], {"FI_PROVIDER": provider})
        assert done.returncode != 0 and "fi_getinfo() failed" in done.stderr
        assert not (tmp_path / "run").exists()
