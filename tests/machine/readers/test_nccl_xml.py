"""NCCL's topology XML: GPUs, links, ports, the PCI tree and CPUs, from hand-written files that show one fact each."""

from __future__ import annotations

import pytest

from collbench.machine.model import SWITCH, GpuLink, NumaNode, PcieLink
from collbench.machine.peak.node import node_of
from collbench.machine.readers.nccl_xml import read
from collbench.machine.readers.text import Unreadable
from tests.machine.readers.nccl_files import ADDRESS, GEN5, NVSWITCHES, WHOLE, by_address, gpu, net, nic, pci, system, topology


class TestADump:
    machine = read(WHOLE, "topo.xml")

    def test_the_source_and_the_host(self):
        assert self.machine.sources == ("NCCL topology XML topo.xml",)
        assert (self.machine.system.architecture, self.machine.system.cpu_vendor) == ("x86_64", "GenuineIntel")
        assert self.machine.numa_nodes == (NumaNode(0, cpus="0-23"),)
        assert self.machine.doubts == ()

    def test_the_gpu(self):
        (found,) = self.machine.gpus
        assert (found.key, found.index, found.vendor, found.model, found.architecture) == ("0000:18:00.0", 0, "nvidia", "H200", "sm_90")
        assert found.numa == 0

    def test_links_to_nvswitches_are_summed_and_the_switches_are_there(self):
        assert self.machine.gpu_links == (GpuLink("0000:18:00.0", SWITCH, 18),)
        assert [device.address for device in self.machine.pci if device.kind == "nvswitch"] == ["0000:05:00.0", "0000:06:00.0"]

    def test_the_nic_and_its_port(self):
        (found,) = self.machine.nics
        assert (found.name, found.address, found.rdma, found.gdr, found.card_guid) == ("mlx5_0", ADDRESS, True, True, "58a2:e103:00b1:7ca8")
        (port,) = found.ports
        assert (port.number, port.rate_bits_per_s, port.rate_text, port.link_layer) == (1, 400e9, "400000 Mb/s", "infiniband")

    def test_the_tree_ends_below_the_root_port(self):
        devices = by_address(self.machine)
        assert devices[ADDRESS].parent == devices["0000:18:00.0"].parent == "0000:16:00.0"
        assert (devices["0000:16:00.0"].kind, devices["0000:16:00.0"].parent) == ("switch", None)
        assert "root ports" in self.machine.unknown["pci/0000:16:00.0/parent"]

    def test_speeds_are_what_the_link_could_do_not_what_it_does(self):
        """NCCL reads max_link_speed of a device and of the port above it, and writes the lower."""
        assert by_address(self.machine)[ADDRESS].link == PcieLink(None, None, 32.0, 16)


class TestGpus:
    def test_a_class_makes_a_gpu_where_the_file_has_no_gpu_element(self):
        machine = topology(
            *(pci(f"000{number}:00:00.0", "", kind) for number, kind in enumerate(("0x030200", "0x030000", "0x120000", "0x038000")))
        )
        assert [(gpu.key, gpu.index) for gpu in machine.gpus] == [(f"000{number}:00:00.0", None) for number in range(4)]

    def test_the_screen_of_a_server_board_is_none(self):
        assert topology(pci(ADDRESS, "", "0x030000", 'vendor="0x1a03"'), nic("0000:01:00.0", net("mlx5_0"))).gpus == ()

    def test_amds_sm_counts_compute_units(self):
        (found,) = topology(gpu(ADDRESS, more='sm="304" gcn="gfx942"', ids='vendor="0x1002" device="0x74a1"')).gpus
        assert (found.vendor, found.model, found.architecture) == ("amd", "MI300X", "gfx942")

    @pytest.mark.parametrize(("gcn", "architecture"), [("906", "gfx906"), ("910", "gfx90a"), ("gfx90a", "gfx90a"), ("?", None)])
    def test_older_releases_number_amds_architectures(self, gcn, architecture):
        assert topology(gpu(ADDRESS, more=f'sm="104" gcn="{gcn}"', ids="")).gpus[0].architecture == architecture

    def test_ids_unknown_to_us_leave_the_model_unknown(self):
        assert topology(gpu(ADDRESS, ids='vendor="0x10de" device="0x0001"')).gpus[0].model is None


class TestLinks:
    def test_a_mesh_counts_each_peer_and_knows_no_switch(self):
        links = '<xgmi target="0000:1a:00.0" count="4" tclass="0x038000"/><xgmi target="0000:1b:00.0" count="1" tclass="0x038000"/>'
        machine = topology(gpu(ADDRESS, links=links), gpu("0000:1a:00.0", 1), gpu("0000:1b:00.0", 2))
        assert machine.gpu_links[:2] == (GpuLink(ADDRESS, "0000:1a:00.0", 4, "xgmi"), GpuLink(ADDRESS, "0000:1b:00.0", 1, "xgmi"))
        assert machine.links_of(ADDRESS) == 5
        assert not machine.switched

    def test_a_gpu_that_lost_its_links_has_none_among_gpus_that_have(self):
        machine = topology(gpu(ADDRESS, links=NVSWITCHES), gpu("0000:1a:00.0", 1))
        assert machine.links_of("0000:1a:00.0") == 0

    def test_gpus_without_any_link_were_not_counted(self):
        assert topology(gpu(ADDRESS), gpu("0000:1a:00.0", 1)).gpu_links == ()

    def test_a_link_to_itself_keeps_its_count_and_raises_a_doubt(self):
        machine = topology(gpu(ADDRESS, links=f'<nvlink target="{ADDRESS}" count="12" tclass="0x030200"/>'))
        assert machine.gpu_links == (GpuLink(ADDRESS, None, 12),)
        assert len(machine.doubts) == 1 and f"GPU {ADDRESS}: its nvlink leads to itself" in machine.doubts[0]

    def test_a_link_to_a_gpu_that_is_not_in_the_file_keeps_its_count(self):
        machine = topology(gpu(ADDRESS, links='<nvlink target="0000:99:00.0" count="12" tclass="0x030200"/>'))
        assert machine.gpu_links == (GpuLink(ADDRESS, None, 12),)
        assert "0000:99:00.0, " in machine.doubts[0]

    def test_a_switch_that_a_virtual_machine_hides_is_no_pci_device(self):
        machine = topology(gpu(ADDRESS, links='<nvlink target="fffffff:ffff:ff" count="18" tclass="0x068000"/>'))
        assert machine.gpu_links == (GpuLink(ADDRESS, SWITCH, 18),)
        assert [device.kind for device in machine.pci] == ["gpu"]

    def test_links_to_a_cpu_are_no_links_between_gpus(self):
        links = '<nvlink target="0004:00:00.0" count="3" tclass="0x068001"/>' + NVSWITCHES
        machine = topology(gpu(ADDRESS, links=links))
        assert (machine.links_of(ADDRESS), machine.gpus[0].cpu_links) == (18, 3)
        assert topology(gpu(ADDRESS, links=NVSWITCHES)).gpus[0].cpu_links is None

    @pytest.mark.parametrize("count", ["", "-1", "0", "x", "1e9", "1000000000000000000"])
    def test_a_count_that_cannot_be_is_left_out_with_a_doubt(self, count):
        machine = topology(gpu(ADDRESS, links=f'<nvlink target="0000:05:00.0" count="{count}" tclass="0x068000"/>' + NVSWITCHES))
        assert machine.links_of(ADDRESS) == 18
        assert len(machine.doubts) == 1 and f"GPU {ADDRESS}: the count of one of its links is '{count}'" in machine.doubts[0]


class TestPorts:
    def port(self, *nets, **how):
        return topology(nic(ADDRESS, *nets, **how)).nics[0].ports[0]

    def test_a_speed_that_was_lowered_by_hand_is_taken_with_a_doubt(self):
        machine = topology(nic(ADDRESS, net("mlx5_0", 180000)))
        assert machine.nics[0].ports[0].rate_bits_per_s == 180e9
        assert len(machine.doubts) == 1 and "mlx5_0 port 1: 180000 Mb/s " in machine.doubts[0]

    @pytest.mark.parametrize("speed", ["200000000", "-1", "0", "", "fast", "1000000000000000000"])
    def test_a_speed_that_no_port_has_is_unknown(self, speed):
        """Slingshot's cxi gives 200000000."""
        machine = topology(nic(ADDRESS, net("cxi0", speed)))
        assert machine.nics[0].ports[0].rate_bits_per_s is None
        assert f"'{speed}' Mb/s" in machine.unknown["nics/cxi0/ports/1/rate_bits_per_s"]

    @pytest.mark.parametrize(("speed", "data"), [(20000, 16e9), (40000, 32e9), (56000, 54.5e9), (100000, 100e9), (800000, 800e9)])
    def test_infinibands_rate_is_what_line_coding_leaves(self, speed, data):
        assert self.port(net("mlx5_0", speed)).rate_bits_per_s == data

    def test_ethernet_at_40_carries_40(self):
        assert self.port(net("eth2", 40000, port=0), class_id="0x020000").rate_bits_per_s == 40e9

    def test_10_gbits_are_also_what_nccl_writes_when_it_does_not_know(self):
        assert self.port(net("mlx5_0", 10000)).rate_bits_per_s is None
        machine = topology(nic(ADDRESS, net("enp96s0f0", 10000, port=0), class_id="0x020000"))
        assert machine.nics[0].ports[0].rate_bits_per_s == 10e9
        assert "also what NCCL writes" in machine.doubts[0]

    def test_a_veth_is_virtual_and_has_no_rate(self):
        machine = topology(f"<nic>{net('veth608058c', 10000, port=0)}{net('eth0', 100000, port=0)}</nic>")
        veth, eth = machine.nics
        assert (veth.virtual, veth.ports[0].rate_bits_per_s, veth.address) == ("veth", None, None)
        assert (eth.virtual, eth.ports[0].rate_bits_per_s, eth.rdma, eth.interfaces) == (None, 100e9, False, ("eth0",))
        assert "speed of a veth" in machine.unknown["nics/veth608058c/ports/1/rate_bits_per_s"]

    def test_two_nets_on_one_function_are_one_pci_device_with_one_guid(self):
        machine = topology(nic(ADDRESS, net("mlx5_0"), net("mlx5_1", port=2)))
        assert [(nic.name, nic.ports[0].number) for nic in machine.nics] == [("mlx5_0", 1), ("mlx5_1", 2)]
        assert {(nic.address, nic.card_guid) for nic in machine.nics} == {(ADDRESS, "58a2:e103:00b1:7ca8")}
        assert len(machine.pci) == 1

    def test_two_ports_of_one_name_are_one_nic(self):
        (found,) = topology(nic(ADDRESS, net("mlx4_0", 56000), net("mlx4_0", 56000, port=2))).nics
        assert [port.number for port in found.ports] == [1, 2]

    def test_one_port_named_twice_counts_once(self):
        machine = topology(nic(ADDRESS, net("mlx5_0"), net("mlx5_0", 100000)))
        assert [port.rate_bits_per_s for port in machine.nics[0].ports] == [400e9]
        assert len(machine.doubts) == 1 and "mlx5_0 port 1: the file names it twice" in machine.doubts[0]

    def test_a_union_is_no_port_beside_its_parts(self):
        machine = topology(nic(ADDRESS, net("mlx5_0"), net("mlx5_1", port=2), net("mlx5_0+mlx5_1", 800000)))
        assert [nic.virtual for nic in machine.nics] == [None, None, "NCCL's union of mlx5_0+mlx5_1"]

    @pytest.mark.parametrize("guid", ["0xb8599f030007053a", "0x3a050700039f59b8"])
    def test_a_guid_reads_the_same_in_both_byte_orders(self, guid):
        assert topology(nic(ADDRESS, net("mlx5_0", more=f'guid="{guid}"'))).nics[0].card_guid == "b859:9f03:0007:053a"

    def test_a_card_without_a_port_is_a_nic_whose_rate_is_unknown(self):
        machine = topology(pci(ADDRESS, "", "0x020000", 'vendor="0x1d0f" device="0xefa0"'))
        (found,) = machine.nics
        assert (found.name, found.ports, found.rdma, found.model) == (ADDRESS, (), True, "Elastic Fabric Adapter")
        assert "no port" in machine.unknown[f"nics/{ADDRESS}/ports"]

    def test_names_come_without_control_characters(self):
        assert topology(nic(ADDRESS, net("mlx5&#10;_0&#x202e;"))).nics[0].name == "mlx5?_0?"


def module(number: int, ids: str, more: str = 'sm="90"', links: str = "") -> str:
    """One of several GPUs."""
    return gpu(f"0000:{number + 32:02x}:00.0", number, links, more, f'vendor="0x10de" device="{ids}"')


class TestLinksThatTheFileDoesNotList:
    def test_modules_that_are_built_with_links_have_unknown_ones(self):
        for machine in (
            topology(*(module(number, "0x2330") for number in range(2))),
            topology(*(module(number, "0xbeef") for number in range(4))),  # by the architecture of a server alone
            topology(*(gpu(f"0000:{n:02x}:00.0", n, "", 'sm="1" gcn="gfx950"', 'vendor="0x1002" device="0x75a3"') for n in range(1, 9))),
        ):
            assert machine.gpu_links == () and "are built with them" in machine.unknown["gpu_links"]
            assert any(doubt.startswith("links between GPUs: ") for doubt in machine.doubts)
            assert node_of(machine).injection.bytes_per_s is None

    def test_cards_without_a_bridge_have_none(self):
        for ids, more in (("0x20b5", 'sm="80"'), ("0x26b9", 'sm="89"')):
            machine = topology(*(module(number, ids, more) for number in range(4)))
            assert {link.count for link in machine.gpu_links} == {0} and "gpu_links" not in machine.unknown
            assert node_of(machine).injection.bytes_per_s

    def test_links_to_the_cpu(self):
        switch = '<nvlink target="fffffff:ffff:ff" count="18" tclass="0x068000"/><c2c bw="40000" count="5"/>'
        machine = topology(*(module(number, "0x31c2", 'sm="103"', switch) for number in range(2)), more='arch="arm64" vendor="ARM"')
        assert [(each.model, each.c2c_links, each.c2c_bytes_per_s) for each in machine.gpus] == [("GB300", 5, 40e9)] * 2
        assert {(link.b, link.count) for link in machine.gpu_links} == {(SWITCH, 18)}


class TestPci:
    def link(self, more):
        return by_address(topology(pci(ADDRESS, "", "0x030200", more)))[ADDRESS].link

    @pytest.mark.parametrize("text", ["32 GT/s PCIe/s", "32.0 GT/s PCIe", "32 GT/s", "32GT/s"])
    def test_speeds_as_people_write_them(self, text):
        assert self.link(f'link_speed="{text}" link_width="16"') == PcieLink(max_speed_gt_per_s=32.0, max_width=16)

    @pytest.mark.parametrize(
        "more", ['link_speed="" link_width="0"', 'link_speed="Unknown" link_width="255"', "", 'link_speed="-8 PT" link_width="63"']
    )
    def test_what_is_no_speed_and_no_width_is_unknown(self, more):
        assert self.link(more) == PcieLink()

    def test_an_upstream_port_slower_than_its_children_is_not_believed(self):
        slow = 'link_speed="5.0 GT/s PCIe" link_width="16"'
        machine = topology(
            pci("0000:08:00.0", pci("0000:0d:00.0", gpu("0000:0f:00.0")) + pci("0000:0a:00.0", nic(ADDRESS, net("mlx5_0"))), more=slow)
        )
        assert by_address(machine)["0000:08:00.0"].link == PcieLink(max_width=16)
        why = "the file gives it 5 GT/s above devices at 32 GT/s, which the ports of one switch do not do"
        assert machine.unknown["pci/0000:08:00.0/link"] == why
        assert machine.doubts == (f"0000:08:00.0: {why}",)

    def test_an_older_switch_above_newer_gpus_is_believed(self):
        machine = topology(pci("0000:18:00.0", gpu(ADDRESS), more='link_speed="8 GT/s" link_width="16"'))
        assert by_address(machine)["0000:18:00.0"].link.max_speed_gt_per_s == 8.0
        assert machine.doubts == ()

    def test_the_placeholder_of_an_integrated_nic_is_not_its_link(self):
        machine = topology(nic(ADDRESS, net("enp96s0f0", 10000, port=0), class_id="0x020000", more='link_speed="2.5 GT/s" link_width="1"'))
        assert by_address(machine)[ADDRESS].link == PcieLink()

    def test_bridges_with_several_children_are_switches_and_others_ports(self):
        devices = by_address(topology(pci("0000:01:00.0", pci("0000:02:00.0", gpu(ADDRESS)) + pci("0000:03:00.0", gpu("0000:04:00.0", 1)))))
        assert [devices[f"0000:0{number}:00.0"].kind for number in (1, 2, 3)] == ["switch", "bridge", "bridge"]

    @pytest.mark.parametrize(
        ("address", "ids"),
        [
            ("ffff:ff:01.0", ""),
            ("0000:01:00.0", 'vendor="0x1b36" device="0x000c"'),
            ("0000:01:00.0", 'vendor="0x104c" device="0x8232"'),
        ],
    )
    def test_bridges_that_were_made_up_are_virtual(self, address, ids):
        machine = topology(pci(address, gpu(ADDRESS), more=f"{ids} {GEN5}"))
        assert (by_address(machine)[address].virtual, by_address(machine)[address].link) == (True, PcieLink())
        assert "link of a virtual function" in machine.unknown[f"pci/{address}/link"]

    def test_a_virtual_function_is_virtual_and_its_nic_real(self):
        machine = topology(nic("0101:00:02.0", net("mlx5_0"), more='vendor="0x15b3" device="0x101e"'))
        assert by_address(machine)["0101:00:02.0"].virtual
        assert machine.nics[0].virtual is None

    def test_functions_without_a_class_may_be_either(self):
        machine = topology(pci("0000:45:00.0", '<pci busid="0000:4f:00.0"/><pci busid="0000:50:00.0"/>', more=""))
        assert (machine.gpus, machine.nics) == ((), ())
        assert machine.unknown["nics"] == machine.unknown["gpus"] and machine.unknown["nics"].startswith("2 PCI functions ")

    def test_a_comment_may_report_that_they_are_nics(self):
        text = "<!-- GPUs are not reported in this file. -->" + system('<pci busid="0000:45:00.0"><pci busid="0000:4f:00.0"/></pci>')
        machine = read(text, "topo.xml")
        assert [nic.address for nic in machine.nics] == ["0000:4f:00.0"]
        assert machine.unknown["gpus"] == "the file names no GPU"


class TestCpus:
    @pytest.mark.parametrize(
        ("mask", "cpus"),
        [
            ("00ff00ff", "0-7,16-23"),
            ("00000001,00000000", "32"),
            ("0", None),
            ("zz", None),
            ("-5", None),
            ("", None),
            (",ffffffff", "0-31"),
        ],
    )
    def test_a_mask_is_a_list(self, mask, cpus):
        assert topology(gpu(ADDRESS), more=f'affinity="{mask}"').numa_nodes[0].cpus == cpus

    @pytest.mark.parametrize("numa", ["-1", "", "x", "99999"])
    def test_a_numa_node_that_is_unknown_is_none(self, numa):
        machine = topology(gpu(ADDRESS), numa=numa)
        assert (machine.numa_nodes, machine.gpus[0].numa) == ((), None)

    def test_of_several_hosts_the_first_is_read(self):
        """NCCL joins the topologies of hosts that share NVLink: their addresses are the same."""
        host = '<cpu numaid="0" host_hash="{}">' + gpu(ADDRESS, links=NVSWITCHES) + "</cpu>"
        machine = read(f"<system>{host.format('0x1')}{host.format('0x2')}</system>", "nvl.xml")
        assert len(machine.gpus) == 1
        assert len(machine.doubts) == 1 and "nvl.xml: it holds 2 hosts" in machine.doubts[0]


class TestWhatIsNone:
    def refused(self, text):
        with pytest.raises(Unreadable) as why:
            read(text, "topo.xml")
        assert "\n" not in str(why.value)
        return str(why.value)

    def test_entity_bombs(self):
        bomb = '<!DOCTYPE s [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]><system><cpu numaid="&b;"/></system>'
        assert self.refused(bomb).startswith("topo.xml is broken XML (")

    def test_depth_bombs(self):
        assert "nests deeper" in self.refused('<system><cpu numaid="0">' + "<pci>" * 100_000)

    def test_more_elements_than_a_machine_has(self):
        assert "more elements" in self.refused("<system>" + "<cpu/>" * 200_001 + "</system>")

    def test_addresses_that_are_none_or_there_twice(self):
        assert "busid 'rm -rf'" in self.refused(system(pci("rm -rf")))
        assert f"it names {ADDRESS} twice" in self.refused(system(pci(ADDRESS, pci(ADDRESS))))
