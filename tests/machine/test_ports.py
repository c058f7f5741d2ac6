"""RDMA devices that are functions of one port, and those that lead to NVLink switches."""

import pytest
from msgspec.structs import replace

from collbench.machine.model import Gpu, Machine, Nic, PciDevice, Port
from collbench.machine.ports import SharedPort, nvlink_management, shared_ports
from tests.machine.machines import infiniband

CARD = "5c25:7303:00a1:b210"


def device(name: str, address: str | None = None, lid: int | None = None, card: str | None = CARD, model: str = "ConnectX-6") -> Nic:
    """An RDMA device with an active port: InfiniBand with a LID, else Ethernet."""
    port = Port(1, 200e9, state="active", link_layer="infiniband" if lid else "ethernet", lid=lid)
    return Nic(name, address, model, rdma=True, ports=(port,), card_guid=card)


def spark(card: str | None = CARD) -> tuple[Nic, ...]:
    """A DGX Spark's two functions of one port, by their names alone."""
    return device("rocep1s0f0", card=card), device("roceP2p1s0f0", card=card)


def pair(a: str, b: str) -> tuple[Nic, ...]:
    """Two devices of one card at these addresses."""
    return device("mlx5_0", a), device("mlx5_1", b)


@pytest.mark.parametrize(("nics", "gpu", "certain"), [
    (spark(), None, True), (spark(card=None), "NVIDIA GB10", True), (spark(card=None), None, False),
    (spark(card=None), "NVIDIA H100", None),
    (pair("0000:17:00.0", "0000:b1:00.0"), None, True),  # one on each socket
    (pair("0000:17:00.0", "0000:17:00.1"), None, None),  # two ports of a card
    (pair("0000:17:00.0", "0000:b1:00.1"), None, None), ((device("mlx5_0", lid=7), device("mlx5_1", lid=7)), None, True),
    ((device("mlx5_0", lid=7), device("mlx5_1", lid=8)), None, None),
    ((device("mlx5_0", "0000:17:00.0", 7), device("mlx5_1", "0000:b1:00.0", 8)), None, None),
    ((device("mlx5_0"), device("mlx5_1")), None, False),  # Ethernet without addresses: two ports, or one
    ((device("hfi1_0", "0000:17:00.0", model="Omni-Path"), device("hfi1_1", "0000:b1:00.0", model="Omni-Path")), None, None),
    ((device("mlx5_0", card="a"), device("mlx5_1", card="b")), None, None),
])  # fmt: skip
def test_functions_of_one_port(nics: tuple[Nic, ...], gpu: str | None, certain: bool | None) -> None:
    """None: they are ports of their own."""
    gpus = (Gpu("gpu0", 0, model=gpu, vendor="nvidia"),) if gpu else ()
    names = tuple(nic.name for nic in nics)
    assert shared_ports(Machine(nics=nics, gpus=gpus)) == (() if certain is None else (SharedPort(names, certain),))


def test_a_guid_of_a_whole_host_and_virtual_functions_join_no_ports() -> None:
    nics = tuple(device(f"mlx5_{place}", f"0000:{place + 1}0:00.0") for place in range(8))
    assert not any(port.certain for port in shared_ports(Machine(nics=nics)))
    share = PciDevice("0000:18:00.0", "nic", virtual=True)
    assert shared_ports(Machine(nics=pair("0000:17:00.0", "0000:18:00.0"), pci=(share,))) == ()


def bridges(sm_lid: int = 1, gbit: float = 100) -> tuple[Nic, ...]:
    """Four ConnectX-7 with the LIDs 1 to 4."""
    ports = [infiniband(gbit, "EDR", lid=lid, sm_lid=sm_lid) for lid in range(1, 5)]
    return tuple(Nic(f"mlx5_{place}", None, "ConnectX-7", True, ports=(port,)) for place, port in enumerate(ports))


COMPUTE = tuple(
    Nic(f"mlx5_{place}", None, "ConnectX-8", True, ports=(Port(1, state="down", link_layer="infiniband"),)) for place in range(4, 12)
)
SAME_MODEL = tuple(replace(nic, model="ConnectX-7") for nic in COMPUTE)
B200, H100, GB200 = "NVIDIA B200", "NVIDIA H100 80GB HBM3", "NVIDIA GB200"


@pytest.mark.parametrize(("nics", "gpu", "found"), [
    ((*bridges(), *COMPUTE), B200, 4), ((*bridges(), *SAME_MODEL), B200, 4), ((*bridges(), *COMPUTE), None, 4),
    ((*bridges(), *SAME_MODEL), None, 0), ((*bridges(), *COMPUTE), H100, 0), ((*bridges(), *COMPUTE), GB200, 0),
    ((*bridges(sm_lid=40), *COMPUTE), B200, 0),  # the subnet manager of the site
    ((*bridges(gbit=400), *COMPUTE), B200, 0),
    (bridges(), B200, 0),  # the only adapters are the network
])  # fmt: skip
def test_devices_that_lead_to_nvlink_switches(nics: tuple[Nic, ...], gpu: str | None, found: int) -> None:
    gpus = (Gpu("gpu0", 0, model=gpu, vendor="nvidia"),) if gpu else ()
    assert len(nvlink_management(Machine(nics=nics, gpus=gpus))) == found
