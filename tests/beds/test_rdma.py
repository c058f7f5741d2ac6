"""Our own readers inside a machine with real InfiniBand verbs: what they say of rxe0 is what the kernel and libibverbs say."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from collbench.topology.archive import Archive, open_archive
from collbench.topology.readers import ibv_devinfo, infiniband
from tests.beds.bed import processes
from tests.beds.rdma import RdmaVm
from tests.conftest import enter

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.in_turn("one boot of the virtual machine")
READ = """
import json, sys
from dataclasses import asdict
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from collbench.topology.readers import ethernet, infiniband
from collbench.topology.files import Folder
from collbench.topology.gather import gather
live = Folder(Path("/"))
print(json.dumps({"rdma": asdict(infiniband.read(live)), "ethernet": asdict(ethernet.read(live))}))
sys.exit(gather(Path("/mnt/machine.tar.gz")))
"""


@dataclass(frozen=True)
class Seen:
    """What one boot brought: the readers' answers inside, and what was gathered there, ibv_devinfo's text with it."""

    rdma: dict[str, Any]
    ethernet: dict[str, Any]
    archive: Archive


@pytest.fixture(scope="module")
def seen() -> Iterator[Seen]:
    """Boots the VM once."""
    with ExitStack() as stack:
        bed = enter(stack, RdmaVm(speed=100_000, mtu=9000))
        (bed.share / "read.py").write_text(READ)
        inside = '"$1" -I /mnt/read.py "$2" && cat /sys/class/infiniband/rxe0/ports/1/rate'
        done = bed.run(["sh", "-c", inside, "sh", sys.executable, str(ROOT)])
        assert done.returncode == 0, done.stderr
        answer, rate = done.stdout.splitlines()
        assert rate == "100 Gb/sec (4X EDR)"
        assert not processes(bed.folder)
        machine = json.loads(answer)
        yield Seen(machine["rdma"], machine["ethernet"], open_archive(bed.share / "machine.tar.gz"))


def test_rxe0_is_read_live(seen: Seen) -> None:
    (nic,) = seen.rdma["nics"]
    assert (nic["name"], nic["rdma"], nic["address"]) == ("rxe0", True, None)
    assert (nic["virtual"], nic["interfaces"]) == ("software RDMA (rxe) over eth0", ["eth0"])
    (port,) = nic["ports"]
    assert (port["rate_text"], port["rate_bits_per_s"]) == ("100 Gb/sec (4X EDR)", 100e9)
    assert (port["state"], port["phys_state"], port["link_layer"], port["mtu_bytes"]) == ("active", "linkup", "ethernet", 4096)
    assert port["counters"]["out_of_seq_request"] == 0


def test_its_card_is_a_virtual_one_at_its_place(seen: Seen) -> None:
    card = next(nic for nic in seen.ethernet["nics"] if nic["name"] == "eth0")
    assert card["virtual"] == "virtio"
    assert card["address"].startswith("0000:00:")
    assert card["ports"][0]["rate_bits_per_s"] is None
    assert card["ports"][0]["mtu_bytes"] == 9000


def test_libibverbs_says_the_same(seen: Seen) -> None:
    (theirs,) = ibv_devinfo.read(seen.archive.text("/outputs/ibv_devinfo-v.txt") or "", "ibv_devinfo").nics
    (ours,) = seen.rdma["nics"]
    (gathered,) = infiniband.read(seen.archive).nics
    assert (theirs.name, theirs.guid) == (ours["name"], gathered.guid)
    (port,) = theirs.ports
    (own,) = ours["ports"]
    assert (port.state, port.mtu_bytes, port.link_layer) == (own["state"], own["mtu_bytes"], own["link_layer"])


def test_what_was_gathered_there_reads_the_same_here(seen: Seen) -> None:
    (nic,) = infiniband.read(seen.archive).nics
    (ours,) = seen.rdma["nics"]
    assert (nic.name, nic.virtual, nic.ports[0].rate_bits_per_s) == (ours["name"], ours["virtual"], 100e9)
    assert nic.guid not in {None, ours["guid"]}  # masked
