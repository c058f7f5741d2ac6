"""NCCL's topology XML, its PCI tree and CPUs, and files that are refused: hand-written ones that show one fact each."""

import pytest

from collbench.machine.model import PcieLink
from collbench.machine.readers.nccl_xml import read
from collbench.machine.readers.text import Unreadable
from tests.machine.readers.nccl_files import ADDRESS, GEN5, NVSWITCHES, by_address, gpu, net, nic, pci, system, topology


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
