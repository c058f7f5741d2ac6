"""CB22xx: NICs, their ports and counters."""

from __future__ import annotations

from dataclasses import replace

import pytest

from collbench.machine.doctor.examine import examine
from collbench.machine.model import Machine, Nic, PcieLink, Port
from tests.doctor.machines import changed, codes, found, with_port, with_system
from tests.machine.machines import bridge, dgx, ethernet, infiniband, laptop, nic_device

BLUEFIELD = Nic("mlx5_bond_0", "0000:aa:00.0", "BlueField-3", True, 1, (ethernet(200, 9000),), ("bond0",))


def one_nic(link: PcieLink, port: Port, **facts: object) -> Machine:
    """A machine with one NIC, its port and its PCIe link."""
    pci = (bridge("0000:00:01.0", None, 0, "root"), nic_device("0000:01:00.0", "0000:00:01.0", 0, link))
    nic = replace(Nic("mlx5_0", "0000:01:00.0", "ConnectX-7", True, 0, (port,)), **facts)  # type: ignore[arg-type]
    return with_system(Machine("gb10", pci=pci, nics=(nic,)), virtualization="")


def test_a_slot_slower_than_its_wire() -> None:
    """A GB10's ConnectX-7: 200 Gb/s behind four lanes of Gen5."""
    finding = found(one_nic(PcieLink(32.0, 4, 32.0, 4), infiniband(200, "HDR")), "CB2201")
    assert finding.severity == "warning" and "15.8 GB/s of the 25 GB/s" in finding.what
    assert finding.evidence == "PCIe 32 GT/s x4 = 15.8 GB/s; ports mlx5_0 200 Gb/s"


@pytest.mark.parametrize(
    ("link", "port"),
    [
        (PcieLink(8.0, 16, 8.0, 16), infiniband(100, "EDR")),
        (PcieLink(32.0, 4, 32.0, 4), infiniband(200, "HDR", state="down", rate_bits_per_s=None)),
        (PcieLink(8.0, 4, 8.0, 4), infiniband(32, "QDR")),  # 3.94 of 4.00 GB/s
        (PcieLink(), infiniband(400, "NDR")),
    ],
)
def test_a_slot_that_suffices_or_is_unknown(link: PcieLink, port: Port) -> None:
    assert "CB2201" not in codes(one_nic(link, port))


def test_virtual_functions_are_shares_of_their_card() -> None:
    """A host that made virtual functions for its guests: they add nothing to the wire, and are down while no guest has them."""
    machine = dgx()
    shares = [nic_device(f"0000:1a:00.{function}", "0000:17:02.0", 0, PcieLink(), virtual=True) for function in (1, 2)]
    up, down = infiniband(400, "NDR"), infiniband(400, "NDR", state="down", rate_bits_per_s=None)
    nics = [Nic(f"mlx5_{8 + place}", each.address, "ConnectX-7 VF", True, 0, (port,)) for place, (each, port) in
            enumerate(zip(shares, (up, down), strict=True))]  # fmt: skip
    assert not codes(replace(machine, pci=(*machine.pci, *shares), nics=(*machine.nics, *nics)))
    guest = replace(machine, system=replace(machine.system, virtualization="kvm"), pci=tuple(shares), nics=(nics[1],))
    assert found(guest, "CB2202").what == "mlx5_9 is down"


def test_two_ports_share_a_slot() -> None:
    machine = one_nic(PcieLink(16.0, 16, 16.0, 16), infiniband(200, "HDR"))
    second = replace(machine.nics[0], name="mlx5_1", address="0000:01:00.1")
    assert "25 GB/s" not in found(replace(machine, nics=(*machine.nics, second)), "CB2201").evidence
    assert found(replace(machine, nics=(*machine.nics, second)), "CB2201").what.startswith("mlx5_0 and mlx5_1: ")


def test_the_only_port_down_is_severe() -> None:
    port = Port(1, None, None, "down", None, "infiniband", None, None, 0)
    finding = found(one_nic(PcieLink(), port), "CB2202")
    assert (finding.severity, finding.what) == ("severe", "mlx5_0 is down")
    assert "(sm_lid 0); 0 of 1 " in finding.evidence


def test_a_lost_rail_of_a_gpu_is_severe() -> None:
    lost = with_port(dgx(), "mlx5_3", state="down", phys_state="polling", rate_bits_per_s=None)
    assert found(lost, "CB2202").severity == "severe"
    assert "down, polling; 7 of 8 " in found(lost, "CB2202").evidence


def test_a_port_apart_from_the_gpus_is_a_warning() -> None:
    storage = Nic("mlx5_8", None, "ConnectX-6", True, 0, (Port(state="down", link_layer="infiniband"),))
    assert found(replace(dgx(), nics=(*dgx().nics, storage)), "CB2202").severity == "warning"


def test_ports_that_may_be_down() -> None:
    """The second function of a card in use, an Ethernet port without RDMA, software."""
    spare = replace(dgx().nics[0], name="mlx5_8", address="0000:1a:00.1", ports=(Port(state="down"),))
    plain = Nic("eno2", "0000:a1:00.1", ports=(Port(state="down", link_layer="ethernet"),))
    soft = Nic("veth0", None, ports=(Port(state="down"),), virtual="veth")
    assert not codes(replace(dgx(), nics=(*dgx().nics, spare, plain, soft)))
    assert not codes(laptop())


@pytest.mark.parametrize(
    "facts", [{"state": "init", "phys_state": "linkup", "sm_lid": 0}, {"state": "init"}, {"state": "active", "sm_lid": 0}]
)
def test_no_subnet_manager(facts: dict[str, object]) -> None:
    finding = found(with_port(dgx(), "mlx5_0", **facts), "CB2203")
    assert finding.severity == "severe" and "mlx5_0 port 1" in finding.what


def test_ethernet_needs_no_subnet_manager() -> None:
    assert "CB2203" not in codes(with_port(dgx(), "mlx5_0", link_layer="ethernet", sm_lid=0))
    assert not codes(with_port(dgx(), "mlx5_0", sm_lid=None))


def test_ethernet_among_infiniband() -> None:
    finding = found(replace(dgx(), nics=(*dgx().nics, BLUEFIELD)), "CB2204")
    assert finding.severity == "note" and "mlx5_bond_0 " in finding.what
    assert finding.remedy.endswith("NCCL_IB_HCA==mlx5_0,mlx5_1,mlx5_2,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_7")
    assert "CB2204" not in codes(Machine(nics=(BLUEFIELD,)))


def test_networks_that_are_none() -> None:
    scif = Nic("scif0", None, None, True, virtual="scif")
    finding = found(replace(dgx(), nics=(*dgx().nics, scif)), "CB2205")
    assert finding.what.startswith("scif0 (scif) ")
    assert "NCCL_IB_HCA=^=scif0" in finding.remedy
    veth = Nic("veth0", None, ports=(Port(rate_bits_per_s=10e9),), virtual="veth")
    assert found(Machine(sources=("NCCL topology XML topo.xml",), nics=(veth,)), "CB2205").severity == "note"
    assert not codes(replace(dgx(), nics=(*dgx().nics, veth)))


def test_small_packets_of_roce() -> None:
    for mtu in (1024, 1500):
        assert found(one_nic(PcieLink(), ethernet(100, mtu)), "CB2206").severity == "warning"
    for port in (ethernet(100, 4096), ethernet(100, 9000), ethernet(100, 1024, state="down"), infiniband(100, "EDR", mtu_bytes=1024)):
        assert "CB2206" not in codes(one_nic(PcieLink(), port))


def test_small_frames_of_tcp() -> None:
    assert found(one_nic(PcieLink(), ethernet(100, 1500), rdma=False), "CB2207").evidence.startswith("mlx5_0: MTU 1500 at 100 Gb/s")
    assert not codes(one_nic(PcieLink(), ethernet(100, 9000), rdma=False))
    assert not codes(one_nic(PcieLink(), ethernet(10, 1500), rdma=False))


def test_a_rail_slower_than_its_siblings() -> None:
    finding = found(with_port(dgx(), "mlx5_5", rate_bits_per_s=100e9), "CB2208")
    assert finding.severity == "warning" and "mlx5_5 100 Gb/s; " in finding.evidence


def test_a_storage_port_of_another_rate_is_no_rail() -> None:
    storage = replace(dgx().nics[0], name="mlx5_8", address=None, ports=(infiniband(200, "HDR"),))
    assert not codes(replace(dgx(), nics=(*dgx().nics, storage)))


@pytest.mark.parametrize(
    ("code", "counters"),
    [
        ("CB2221", {"symbol_error": 100_000, "port_rcv_errors": 3}),
        ("CB2221", {"link_error_recovery": 100}),
        ("CB2222", {"link_downed": 255}),
        ("CB2223", {"out_of_sequence": 1000}),
        ("CB2224", {"rp_cnp_handled": 5_000_000}),
    ],
)
def test_counters_with_a_finding(code: str, counters: dict[str, int]) -> None:
    machine = with_port(dgx(), "mlx5_2", counters=counters)
    assert codes(machine) == [code]
    assert found(machine, code).evidence.startswith(f"mlx5_2 port 1: {next(iter(counters))}")


def test_counters_of_a_healthy_port() -> None:
    counters = {
        "symbol_error": 3,
        "link_downed": 1,
        "port_rcv_errors": 14,
        "out_of_sequence": 20,
        "rp_cnp_handled": 9000,
        "port_xmit_wait": 2_489_603_687,
    }
    assert not codes(with_port(dgx(), "mlx5_2", counters=counters))


def test_a_port_that_waited_far_longer_than_its_siblings() -> None:
    wait = 2_000_000_000
    alike = replace(
        dgx(), nics=tuple(replace(nic, ports=(replace(nic.ports[0], counters={"port_xmit_wait": wait}),)) for nic in dgx().nics)
    )
    assert not codes(alike)
    finding = found(with_port(alike, "mlx5_3", counters={"port_xmit_wait": 10 * wait}), "CB2225")
    assert finding.severity == "note" and "mlx5_3" in finding.what
    assert "port_xmit_wait 20000000000; " in finding.evidence
    assert not codes(with_port(dgx(), "mlx5_3", counters={"port_xmit_wait": 10 * wait}))
    assert not codes(with_port(alike, "mlx5_3", counters={"port_xmit_wait": 9 * wait}))


def test_nics_in_a_virtual_machine_show_no_slot() -> None:
    machine = with_system(one_nic(PcieLink(2.5, 1, 2.5, 1), infiniband(200, "HDR")), virtualization="kvm")
    assert not codes(changed(machine, "pci", "0000:01:00.0", virtual=True))


@pytest.mark.parametrize(
    ("rates", "slow"),
    [
        ((400, 400, 400, 100), ["mlx5_3"]),
        ((400, 400, 100, 100), []),
        ((400, 400, 400, 390), []),
        ((400, 400, 400, 200, 200, 100, 100), []),
        ((400, 400, 400, 400, 200, 100), ["mlx5_4", "mlx5_5"]),
    ],
)
def test_a_rate_that_most_siblings_have_is_the_measure(rates: tuple[int, ...], slow: list[str]) -> None:
    machine = dgx()
    for number in range(len(machine.nics)):
        name = f"mlx5_{number}"
        if number < len(rates):
            machine = with_port(machine, name, rate_bits_per_s=rates[number] * 1e9)
    kept = replace(machine, nics=tuple(nic for nic in machine.nics if int(nic.name.rpartition("_")[2]) < len(rates)))
    assert [finding.what.partition(" at ")[0] for finding in examine((kept,)) if finding.code == "CB2208"] == (
        [" and ".join(slow)] if slow else []
    )
