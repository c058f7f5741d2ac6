"""NCCL topology XML written by hand, for the tests of its reader: each function gives one element's text."""

from collections.abc import Mapping

from collbench.machine.model import Machine, PciDevice
from collbench.machine.readers.nccl_xml import read

ADDRESS = "0000:19:00.0"

GEN5 = 'link_speed="32.0 GT/s PCIe" link_width="16"'
NVSWITCHES = '<nvlink target="0000:05:00.0" count="9" tclass="0x068000"/><nvlink target="0000:06:00.0" count="9" tclass="0x068000"/>'


def pci(address: str, inside: str = "", class_id: str = "0x060400", more: str = GEN5) -> str:
    return f'<pci busid="{address}" class="{class_id}" {more}>{inside}</pci>'


def gpu(address: str, number: int = 0, links: str = "", more: str = 'sm="90"', ids: str = 'vendor="0x10de" device="0x2335"') -> str:
    inside = f'<gpu dev="{number}" {more} rank="{number}" gdr="1">{links}</gpu>'
    return pci(address, inside, "0x030200", f"{ids} {GEN5}")


def nic(address: str, *nets: str, class_id: str = "0x020700", more: str = GEN5) -> str:
    return pci(address, f"<nic>{''.join(nets)}</nic>", class_id, more)


def net(name: str, speed: int | str = 400000, port: int = 1, more: str = 'guid="0xa87cb10003e1a258" gdr="1"') -> str:
    return f'<net name="{name}" dev="0" speed="{speed}" port="{port}" latency="0.000000" maxconn="131072" {more}/>'


def system(*inside: str, numa: str = "0", more: str = 'affinity="00000000,00ffffff" arch="x86_64" vendor="GenuineIntel"') -> str:
    """A file with one NUMA node."""
    return f'<system version="1"><cpu numaid="{numa}" {more}>{"".join(inside)}</cpu></system>'


def topology(*inside: str, **how: str) -> Machine:
    """What the reader makes of such a file."""
    return read(system(*inside, **how), "topo.xml")


def by_address(machine: Machine) -> Mapping[str, PciDevice]:
    return {device.address: device for device in machine.pci}


WHOLE = system(pci("0000:16:00.0", gpu("0000:18:00.0", links=NVSWITCHES) + nic(ADDRESS, net("mlx5_0"))))
