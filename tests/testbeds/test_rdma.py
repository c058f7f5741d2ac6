"""collbench's readers inside a machine with real InfiniBand verbs: they agree with the kernel and libibverbs about rxe0.

Also its counters: the bytes of a libibverbs ping-pong through rxe0, the evidence on the row of a whole run over MPI, and the channels
that perftest measures there.
"""

import json
import re
import shutil
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from collbench.machine.archive import Archive, open_archive
from collbench.machine.readers import network, rdma_tools
from tests.conftest import cannot, enter, needs_plugin
from tests.testbeds.bed import processes
from tests.testbeds.rdma import RdmaVm

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.long, pytest.mark.timeout(200)]  # emulated: a busy machine takes minutes
MTU, MIB = 4096, 1 << 20
ROUNDS = 5
READ = """
import json, subprocess, sys, time
from msgspec import to_builtins
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from collbench.measuring import instruments as counters
from collbench.machine.readers import network
from collbench.machine.files import Folder
from collbench.machine.gather import gather
from collbench.plugin import plugins
live = Folder(Path("/"))
pingpong = ["ibv_rc_pingpong", "-d", "rxe0", "-g", "1", "-m", sys.argv[2], "-s", sys.argv[3], "-n", sys.argv[4]]
before = counters.read()
with subprocess.Popen(pingpong, stdout=subprocess.DEVNULL) as server:
    while subprocess.run([*pingpong, "127.0.0.1"], capture_output=True).returncode and server.poll() is None:
        time.sleep(0.05)  # it does not listen yet
moved = counters.moved(before, counters.read())
channels, theirs = [], {}
if "channels" in plugins():
    from collbench.machine.here import this_machine
    from collbench.measuring.probing import together_or_alone
    from collbench.plugins.channels.records import document
    from collbench.plugins.channels.task import nic_channels
    from collbench.plugins.channels.wire_tools import BANDWIDTH, WIRE_TOOLS, ToolPair, ToolRequest, run_tool, version_here
    with together_or_alone({}, 240) as world:
        channels = document(nic_channels(world, this_machine(), {}, 0.3))["channels"]
        tool, ask = WIRE_TOOLS["ib_write_bw"], ToolRequest(BANDWIDTH, 4096)
        (ran,) = run_tool(world, tool, ask, [ToolPair(world.me, world.me)], [version_here(tool)])
        theirs = {"time_s": ran.figure.time_s if ran.figure else None, "why": ran.why, **ran.evidence(tool)}
seen = {"rdma": to_builtins(network.read(live)), "ethernet": to_builtins(network.read_ethernet(live)), "moved": moved, "channels": channels}
seen["theirs"] = theirs
print(json.dumps(seen))
sys.exit(gather(Path("/mnt/machine.tar.gz")))
"""
# The two ranks share the VM: this makes MPICH use the network between them.
RUN = """
mkdir /dev/shm && mount -t tmpfs none /dev/shm
export UCX_TLS=rc,ud,self UCX_NET_DEVICES=rxe0:1 MPIR_CVAR_CH4_NETMOD=ucx MPIR_CVAR_NOLOCAL=1 PYTHONPATH="$1" HOME=/mnt
exec timeout 90 "$2" -n 2 "$3" -m collbench allreduce --backend mpi --sizes 1M -n 6 -w 1 --timeout 80 --out /mnt/run
"""


@dataclass(frozen=True)
class RdmaMachine:
    """The results of one boot: the readers' output, the gathered files (with ibv_devinfo's), the moved bytes, channels, external tools."""

    rdma: dict[str, Any]
    ethernet: dict[str, Any]
    archive: Archive
    moved: dict[str, Any]
    channels: dict[str, dict[str, Any]]
    theirs: dict[str, Any]


@pytest.fixture(scope="module")
def seen():
    with ExitStack() as stack:
        bed = enter(stack, RdmaVm(speed=100_000, mtu=9000))
        (bed.share / "read.py").write_text(READ)
        inside = '"$@" && cat /sys/class/infiniband/rxe0/ports/1/rate'
        read = [sys.executable, "-I", "/mnt/read.py", str(ROOT), str(MTU), str(MIB), str(ROUNDS)]
        done = bed.run(["sh", "-c", inside, "sh", *read], timeout=150)
        assert done.returncode == 0, done.stderr
        answer, rate = done.stdout.splitlines()
        assert rate == "100 Gb/sec (4X EDR)"
        assert not processes(bed.folder)
        machine = json.loads(answer)
        channels = {row["channel"]: row for row in machine["channels"]}
        archive = open_archive(bed.share / "machine.tar.gz")
        yield RdmaMachine(machine["rdma"], machine["ethernet"], archive, machine["moved"], channels, machine["theirs"])


def test_rxe0_is_read_live(seen):
    (nic,) = seen.rdma["nics"]
    assert (nic["name"], nic["rdma"], nic["address"]) == ("rxe0", True, None)
    assert (nic["virtual"], nic["interfaces"]) == ("software RDMA (rxe) over eth0", ["eth0"])
    (port,) = nic["ports"]
    assert (port["rate_text"], port["rate_bits_per_s"]) == ("100 Gb/sec (4X EDR)", 100e9)
    assert (port["state"], port["phys_state"], port["link_layer"], port["mtu_bytes"]) == ("active", "linkup", "ethernet", 4096)
    assert port["counters"]["out_of_seq_request"] == 0


def test_its_card_is_a_virtual_one_at_its_place(seen):
    card = next(nic for nic in seen.ethernet["nics"] if nic["name"] == "eth0")
    assert card["virtual"] == "virtio"
    assert card["address"].startswith("0000:00:")
    assert card["ports"][0]["rate_bits_per_s"] is None
    assert card["ports"][0]["mtu_bytes"] == 9000


def test_libibverbs_and_what_was_gathered_there_report_the_same(seen):
    (theirs,) = rdma_tools.read_ibv_devinfo(seen.archive.text("/outputs/ibv_devinfo-v.txt") or "", "ibv_devinfo").nics
    (ours,) = seen.rdma["nics"]
    (gathered,) = network.read(seen.archive).nics
    assert (theirs.name, theirs.guid) == (ours["name"], gathered.guid)
    (port,) = theirs.ports
    (own,) = ours["ports"]
    assert (port.state, port.mtu_bytes, port.link_layer) == (own["state"], own["mtu_bytes"], own["link_layer"])
    assert (gathered.name, gathered.virtual, gathered.ports[0].rate_bits_per_s) == (ours["name"], ours["virtual"], 100e9)
    assert gathered.guid not in {None, ours["guid"]}  # masked


def test_packets_are_counted_as_they_are_sent(seen):
    """The payload in packets of 4 KiB, and the answers: acknowledgements and, rarely, a retransmission."""
    port, least = seen.moved["ports"]["rxe0/1"], 2 * ROUNDS * MIB // MTU
    assert least <= port["sent_pkts"] <= 1.2 * least
    assert least <= port["rcvd_pkts"] <= 1.2 * least
    assert (seen.moved["silent"], seen.moved["leaving"]) == ([], ["eth0"])


@needs_plugin("channels")
def test_perftest_measures_its_channels_and_runs_as_a_wire_tool(seen):
    if shutil.which("ib_write_bw") is None:
        cannot("perftest is not installed: apt-get install perftest")
    nic = seen.channels["nic_host_memory_perftest"]
    assert nic["na"] is None and nic["bytes_per_s"] > 0 and {"unverified", "their_tool"} <= set(nic["flags"])
    assert nic["from"].endswith("/rxe0") and nic["of_bytes_per_s"] is None
    assert re.match(r"NIC rxe0 is software RDMA \(rxe\) over eth0: no rate of its own", nic["limited_by"])
    assert seen.channels["nic_gpu_memory_gdr_on"]["na"] == "CUDA shows no GPU near this NIC"
    assert seen.theirs["why"] is None and seen.theirs["time_s"] > 0
    assert seen.theirs["tool"]["device"] == "rxe0" and re.fullmatch(r"[\d.]+", seen.theirs["tool"]["version"])
    assert seen.theirs["statistic"] == "mean over 5000 writes (BW average)"


def test_a_run_over_mpi_leaves_its_packets_on_the_row():
    mpiexec = Path(sys.prefix) / "bin/mpiexec"
    if not mpiexec.exists():
        pytest.skip("no MPICH in this environment: pip install collbench[mpich]")
    with ExitStack() as stack:
        bed = enter(stack, RdmaVm(speed=100_000, mtu=9000))
        done = bed.run(["sh", "-c", RUN, "sh", str(ROOT), str(mpiexec), sys.executable], timeout=150)
        cells = bed.share / "run/cells.jsonl"  # the results are on disk: MPICH over rxe sometimes hangs in MPI_Finalize
        (row,) = [json.loads(line) for line in cells.read_text().splitlines()] if cells.exists() else pytest.fail(done.stdout + done.stderr)
    moved = row["evidence"]["moved"]
    (host,) = moved["hosts"].values()
    least = moved["inside"]["at_least_bytes"]
    assert (moved["iterations"], least, row["wrong"]) == (7, 7 * 2 * MIB, 0)
    assert least / MTU <= host["ports"]["rxe0/1"]["sent_pkts"] <= 1.2 * least / MTU
    assert moved["inside"]["loopback_bytes"] < 0.01 * least
