"""CB22xx: NICs, their ports and counters."""

import pytest
from msgspec.structs import replace

from collbench.machine.doctor.examine import examine
from collbench.machine.model import Machine, Nic, PcieLink, Port
from tests.doctor.machines import Fault, changed, codes, with_link, with_port, with_system
from tests.machine.machines import bridge, dgx, ethernet, infiniband, laptop, nic_device

BLUEFIELD = Nic("mlx5_bond_0", "0000:aa:00.0", "BlueField-3", True, 1, (ethernet(200, 9000),), ("bond0",))
NIC = dgx().nics[0].address or ""


def one_nic(link: PcieLink, port: Port, **facts: object) -> Machine:
    pci = (bridge("0000:00:01.0", None, 0, "root"), nic_device("0000:01:00.0", "0000:00:01.0", 0, link))
    nic = replace(Nic("mlx5_0", "0000:01:00.0", "ConnectX-7", True, 0, (port,)), **facts)  # type: ignore[arg-type]
    return with_system(Machine("gb10", pci=pci, nics=(nic,)), virtualization="")


def with_nics(*nics: Nic) -> Machine:
    return replace(dgx(), nics=(*dgx().nics, *nics))


def counted(machine: Machine, **counters: int) -> Machine:
    return with_port(machine, "mlx5_3", counters=counters)


# A GB10's ConnectX-7: 200 Gb/s behind four lanes of Gen5; and a card with two ports in one slot.
GB10 = one_nic(PcieLink(32.0, 4, 32.0, 4), infiniband(200, "HDR"))
TWO_PORTS = one_nic(PcieLink(16.0, 16, 16.0, 16), infiniband(200, "HDR"))
TWO_PORTS = replace(TWO_PORTS, nics=(*TWO_PORTS.nics, replace(TWO_PORTS.nics[0], name="mlx5_1", address="0000:01:00.1")))
HALF_SLOT = with_link(with_link(dgx(), NIC, PcieLink(32.0, 8, 32.0, 8)), "0000:17:02.0", PcieLink(32.0, 8, 32.0, 8))
# Virtual functions for guests add nothing to the wire, and are down while no guest has them.
SHARES = [nic_device(f"0000:1a:00.{function}", "0000:17:02.0", 0, PcieLink(), virtual=True) for function in (1, 2)]
DOWN = infiniband(400, "NDR", state="down", rate_bits_per_s=None)
VIRTUAL = [Nic(f"mlx5_{8 + place}", each.address, "ConnectX-7 VF", True, 0, (port,))
           for place, (each, port) in enumerate(zip(SHARES, (infiniband(400, "NDR"), DOWN), strict=True))]  # fmt: skip
GUEST = replace(with_system(dgx(), virtualization="kvm"), pci=tuple(SHARES), nics=(VIRTUAL[1],))
STORAGE = Nic("mlx5_8", None, "ConnectX-6", True, 0, (Port(state="down", link_layer="infiniband"),))
SPARE = replace(dgx().nics[0], name="mlx5_8", address="0000:1a:00.1", ports=(Port(state="down"),))
SLOWER_STORAGE = replace(dgx().nics[0], name="mlx5_8", address=None, ports=(infiniband(200, "HDR"),))
VETH = Nic("veth0", None, ports=(Port(rate_bits_per_s=10e9),), virtual="veth")
UNDRIVEN = Nic(NIC, NIC, "ConnectX-7", rdma_missing=True)
LOST = with_port(dgx(), "mlx5_3", state="down", phys_state="polling", rate_bits_per_s=None)
MODELS_UNKNOWN = with_port(dgx(), "mlx5_5", rate_bits_per_s=100e9)
MODELS_UNKNOWN = changed(changed(MODELS_UNKNOWN, "nics", "mlx5_0", model=None), "nics", "mlx5_1", model=None)
RAILS = "\nname the rails for NCCL: NCCL_IB_HCA==mlx5_0,mlx5_1,mlx5_2,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_7\n"
WAIT = 2_000_000_000
WAITS = replace(dgx(), nics=tuple(replace(nic, ports=(replace(nic.ports[0], counters={"port_xmit_wait": WAIT}),)) for nic in dgx().nics))

CARD = "5c25:7303:00a1:b210"
UNUSED = Port(1, state="down", phys_state="disabled", link_layer="ethernet")
SPARK = tuple(
    Nic(f"roce{bus}f{number}", None, "ConnectX-7", True, None, (port,), card_guid=CARD)
    for bus in ("p1s0", "P2p1s0")
    for number, port in enumerate((ethernet(200, 4096), UNUSED))
)
# A port of 200 Gb/s behind two interfaces of four lanes each: together they are faster.
GB10_WHOLE = replace(
    GB10,
    pci=(*GB10.pci, nic_device("0002:01:00.0", None, 0, PcieLink(32.0, 4, 32.0, 4))),
    nics=tuple(replace(GB10.nics[0], name=name, address=address, card_guid=CARD)
               for name, address in (("mlx5_0", "0000:01:00.0"), ("mlx5_1", "0002:01:00.0"))),
)  # fmt: skip
BRIDGES = tuple(
    Nic(f"mlx5_{8 + place}", None, "ConnectX-7", True, 0, (infiniband(100, "EDR", lid=place + 1, sm_lid=1),)) for place in range(4)
)
ON_B200 = replace(dgx(), gpus=tuple(replace(gpu, model="NVIDIA B200") for gpu in dgx().gpus), nics=(*dgx().nics, *BRIDGES))

FAULTS = [
    Fault("a slot slower than its wire", "CB2201", "warning", GB10,
          ("15.8 GB/s of the 25 GB/s", "\nPCIe 32 GT/s x4 = 15.8 GB/s; ports mlx5_0 200 Gb/s\n")),
    Fault("two ports share a slot", "CB2201", "warning", TWO_PORTS, ("\nmlx5_0 and mlx5_1: ", "of the 50 GB/s")),
    Fault("half a slot", "CB2201", "warning", HALF_SLOT),
    Fault("the only port down", "CB2202", "severe", one_nic(PcieLink(), Port(1, None, None, "down", None, "infiniband", None, None, 0)),
          ("\nmlx5_0 is down\n", "(sm_lid 0); 0 of 1 ")),
    Fault("a GPU's rail down", "CB2202", "severe", LOST, ("down, polling; 7 of 8 ",)),
    Fault("a port down apart from the GPUs", "CB2202", "warning", with_nics(STORAGE)),
    Fault("the only function of a guest down", "CB2202", "severe", GUEST, ("\nmlx5_9 is down\n",)),
    Fault("no subnet manager: init, LID 0", "CB2203", "severe", with_port(dgx(), "mlx5_0", state="init", phys_state="linkup", sm_lid=0),
          ("mlx5_0 port 1",)),
    Fault("no subnet manager: init", "CB2203", "severe", with_port(dgx(), "mlx5_0", state="init"), ("mlx5_0 port 1",)),
    Fault("no subnet manager: LID 0", "CB2203", "severe", with_port(dgx(), "mlx5_0", state="active", sm_lid=0), ("mlx5_0 port 1",)),
    Fault("Ethernet among InfiniBand", "CB2204", "note", with_nics(BLUEFIELD), ("mlx5_bond_0 ", RAILS)),
    Fault("software RDMA", "CB2205", "note", with_nics(Nic("scif0", None, None, True, virtual="scif")),
          ("\nscif0 (scif) ", "NCCL_IB_HCA=^=scif0")),
    Fault("a veth in NCCL's file", "CB2205", "note", Machine(sources=("NCCL topology XML topo.xml",), nics=(VETH,))),
    Fault("RoCE in packets of 1024", "CB2206", "warning", one_nic(PcieLink(), ethernet(100, 1024))),
    Fault("RoCE in packets of 1500", "CB2206", "warning", one_nic(PcieLink(), ethernet(100, 1500))),
    Fault("TCP in small frames", "CB2207", "note", one_nic(PcieLink(), ethernet(100, 1500), rdma=False),
          ("\nmlx5_0: MTU 1500 at 100 Gb/s",)),
    Fault("a slow rail", "CB2208", "warning", with_port(dgx(), "mlx5_5", rate_bits_per_s=100e9), ("\nmlx5_5 100 Gb/s; ",)),
    Fault("a slow rail among rails of unknown models", "CB2208", "warning", MODELS_UNKNOWN, ("\nmlx5_5 at ",)),
    Fault("lost lanes", "CB2209", "warning", with_port(dgx(), "mlx5_3", lanes=1, max_lanes=4)),
    Fault("an RDMA card without a driver", "CB2210", "warning", replace(dgx(), nics=(*dgx().nics[1:], UNDRIVEN))),
    Fault("an unused port with two functions", "CB2202", "note", Machine(nics=SPARK), ("\nrocep1s0f1 and roceP2p1s0f1 are down",)),
    Fault("two functions of one port", "CB2211", "note", Machine(nics=SPARK[::2]), ("\nrocep1s0f0 and roceP2p1s0f0: ",)),
    Fault("ports to the NVLink switches", "CB2212", "note", ON_B200, ("NCCL_IB_HCA=^=mlx5_8,mlx5_9,mlx5_10,mlx5_11\n",)),
    Fault("bit errors", "CB2221", "warning", counted(dgx(), symbol_error=100_000, port_rcv_errors=3), ("\nmlx5_3 port 1: symbol_error",)),
    Fault("recovered links", "CB2221", "warning", counted(dgx(), link_error_recovery=100), ("\nmlx5_3 port 1: link_error_recovery",)),
    Fault("a link that flaps", "CB2222", "warning", counted(dgx(), link_downed=255), ("\nmlx5_3 port 1: link_downed",)),
    Fault("packets lost", "CB2223", "note", counted(dgx(), out_of_sequence=1000), ("\nmlx5_3 port 1: out_of_sequence",)),
    Fault("congestion", "CB2224", "note", counted(dgx(), rp_cnp_handled=5_000_000), ("\nmlx5_3 port 1: rp_cnp_handled",)),
    Fault("a port that waits", "CB2225", "note", counted(WAITS, port_xmit_wait=10 * WAIT), ("mlx5_3", "port_xmit_wait 20000000000; ")),
]  # fmt: skip
LITTLE = {"symbol_error": 3, "link_downed": 1, "port_rcv_errors": 14, "out_of_sequence": 20, "rp_cnp_handled": 9000}
HEALTHY = {
    "a fast slot": one_nic(PcieLink(8.0, 16, 8.0, 16), infiniband(100, "EDR")),
    "1.5 % less than the wire": one_nic(PcieLink(8.0, 4, 8.0, 4), infiniband(32, "QDR")),
    "an unknown slot": one_nic(PcieLink(), infiniband(400, "NDR")),
    "a slot in a virtual machine": changed(with_system(one_nic(PcieLink(2.5, 1, 2.5, 1), infiniband(200, "HDR")), virtualization="kvm"),
        "pci", "0000:01:00.0", virtual=True),
    "virtual functions of a listed card": replace(with_nics(*VIRTUAL), pci=(*dgx().pci, *SHARES)),
    "the second function of a card in use": with_nics(SPARE),
    "an Ethernet port without RDMA": with_nics(Nic("eno2", "0000:a1:00.1", ports=(Port(state="down", link_layer="ethernet"),))),
    "software that is down": with_nics(Nic("veth0", None, ports=(Port(state="down"),), virtual="veth")),
    "a laptop": laptop(),
    "a laptop's dock": Machine("laptop", nics=(Nic("enx00", ports=(Port(state="down", link_layer="ethernet"),), interfaces=("enx00",)),)),
    "an unknown subnet manager": with_port(dgx(), "mlx5_0", sm_lid=None), "Ethernet alone": Machine(nics=(BLUEFIELD,)),
    "a veth beside NICs": with_nics(VETH),
    "TCP in large frames": one_nic(PcieLink(), ethernet(100, 9000), rdma=False),
    "slow TCP in small frames": one_nic(PcieLink(), ethernet(10, 1500), rdma=False),
    "RoCE in packets of 4096": one_nic(PcieLink(), ethernet(100, 4096)),
    "RoCE in packets of 9000": one_nic(PcieLink(), ethernet(100, 9000)),
    "RoCE rails": replace(dgx(), nics=tuple(replace(nic, ports=(ethernet(400, 4096),)) for nic in dgx().nics)),
    "GPUs with TCP alone": replace(dgx(), nics=(Nic("eth0", None, "ConnectX-6", False, 0, (ethernet(100, 9000),), ("eth0",)),)),
    "InfiniBand in packets of 1024": one_nic(PcieLink(), infiniband(100, "EDR", mtu_bytes=1024)),
    "a storage port of another rate": with_nics(SLOWER_STORAGE), "all lanes": with_port(dgx(), "mlx5_3", lanes=4, max_lanes=4),
    "low counters": counted(dgx(), **LITTLE, port_xmit_wait=2_489_603_687), "all ports wait": WAITS,
    "no sibling counts waits": counted(dgx(), port_xmit_wait=10 * WAIT), "nine times the median": counted(WAITS, port_xmit_wait=9 * WAIT),
}  # fmt: skip
# Machines with another finding, or with none of interest, that must not have this one.
NOT = [
    ("CB2201", GB10_WHOLE), ("CB2202", Machine(nics=SPARK[::2])), ("CB2208", ON_B200),
    ("CB2212", with_nics(*BRIDGES)),  # not on the board of an H100
    ("CB2201", one_nic(PcieLink(32.0, 4, 32.0, 4), infiniband(200, "HDR", state="down", rate_bits_per_s=None))),
    ("CB2203", with_port(dgx(), "mlx5_0", link_layer="ethernet", sm_lid=0)),
    ("CB2206", one_nic(PcieLink(), ethernet(100, 1024, state="down"))),
    ("CB2206", with_nics(replace(BLUEFIELD, ports=(ethernet(100, 1024),)))),  # InfiniBand is the fabric
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=[each.name for each in FAULTS])
def test_a_fault_is_found(fault: Fault) -> None:
    fault.check()
    assert fault.code < "CB2221" or codes(fault.machine) == [fault.code]


@pytest.mark.parametrize("machine", HEALTHY.values(), ids=HEALTHY)
def test_what_is_no_fault(machine: Machine) -> None:
    assert not codes(machine)


@pytest.mark.parametrize(("code", "machine"), NOT, ids=[code for code, _ in NOT])
def test_a_fault_of_another_kind(code: str, machine: Machine) -> None:
    assert code not in codes(machine)


@pytest.mark.parametrize(("rates", "slow"), [
    ((400, 400, 400, 100), ["mlx5_3"]), ((400, 400, 100, 100), []), ((400, 400, 400, 390), []), ((400, 400, 400, 200, 200, 100, 100), []),
    ((400, 400, 400, 400, 200, 100), ["mlx5_4 and mlx5_5"]),
])  # fmt: skip
def test_a_rate_that_most_siblings_have_is_the_measure(rates: tuple[int, ...], slow: list[str]) -> None:
    machine = replace(dgx(), nics=dgx().nics[: len(rates)])
    for number, rate in enumerate(rates):
        machine = with_port(machine, f"mlx5_{number}", rate_bits_per_s=rate * 1e9)
    assert [finding.what.partition(" at ")[0] for finding in examine((machine,)) if finding.code == "CB2208"] == slow
