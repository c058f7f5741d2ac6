"""What ibnetdiscover prints of made-up fabrics: two-level fat trees of any size, plain or as the ports of -p."""

from dataclasses import dataclass, field
from pathlib import Path

FOLDER = Path(__file__).parent / "fabrics"
FAT_TREE = FOLDER / "fat_tree_16_hosts.txt"
TINY = FOLDER / "three_hosts_ports.txt"

HEAD = """#
# Topology file: generated on Mon Mar  3 10:12:45 2025
#
# Initiated from node {host} port {host}

"""


@dataclass
class Text:
    """A fabric being written. ports: by GUID of a node, what hangs on each of its ports as (port, peer, its port)."""

    descriptions: dict[str, str] = field(default_factory=dict)
    lids: dict[str, int] = field(default_factory=dict)
    ports: dict[str, list[tuple[int, str, int]]] = field(default_factory=dict)

    def node(self, guid: str, description: str) -> str:
        """One more; its LID is the next."""
        self.descriptions[guid], self.lids[guid], self.ports[guid] = description, len(self.lids) + 1, []
        return guid

    def cable(self, a: str, b: str) -> None:
        """Between the next free ports of both."""
        ends = [(guid, len(self.ports[guid]) + 1) for guid in (a, b)]
        for (guid, port), (peer, far) in (ends, ends[::-1]):
            self.ports[guid].append((port, peer, far))

    def plain(self, rate: str = "4xHDR") -> str:
        """As the tool prints it without options."""
        switches = [guid for guid in self.ports if _letter(guid) == "S"]
        hosts = [guid for guid in self.ports if _letter(guid) == "H"]
        return HEAD.format(host=hosts[0]) + "\n".join([*(self._switch(s, rate) for s in switches), *(self._host(h, rate) for h in hosts)])

    def by_port(self, rate: str = "4x HDR") -> str:
        """As -p prints it."""
        rows = [self._row(guid, *port, rate) for guid, ports in self.ports.items() for port in reversed(ports)]
        return "\n".join(rows) + "\n"

    def _switch(self, guid: str, rate: str) -> str:
        head = f"vendid=0x2c9\ndevid=0xd2f0\nsysimgguid=0x{guid}\nswitchguid=0x{guid}({guid})\n"
        node = f'Switch\t41 "S-{guid}"\t\t# "{self.descriptions[guid]}" enhanced port 0 lid {self.lids[guid]} lmc 0\n'
        return head + node + "".join(self._switch_port(*port, rate) for port in self.ports[guid])

    def _switch_port(self, port: int, peer: str, far: int, rate: str) -> str:
        own = f"({peer}) " if _letter(peer) == "H" else ""
        return f'[{port}]\t"{_letter(peer)}-{peer}"[{far}]{own}\t\t# "{self.descriptions[peer]}" lid {self.lids[peer]} {rate}\n'

    def _host(self, guid: str, rate: str) -> str:
        head = f"vendid=0x2c9\ndevid=0x101b\nsysimgguid=0x{guid}\ncaguid=0x{guid}\n"
        ports = "".join(
            f'[{port}]({guid}) \t"S-{peer}"[{far}]\t\t# lid {self.lids[guid]} lmc 0 '
            f'"{self.descriptions[peer]}" lid {self.lids[peer]} {rate}\n'
            for port, peer, far in self.ports[guid]
        )
        return head + f'Ca\t1 "H-{guid}"\t\t# "{self.descriptions[guid]}"\n' + ports

    def _row(self, guid: str, port: int, peer: str, far: int, rate: str) -> str:
        sides = (f"{_kind(each)} {self.lids[each]:5d} {number:2d} 0x{each}" for each, number in ((guid, port), (peer, far)))
        return f"{next(sides)} {rate} - {next(sides)} ( '{self.descriptions[guid]}' - '{self.descriptions[peer]}' )"


def fat_tree(leaves: int = 4, hosts: int = 4, spines: int = 2, parallel: int = 2, *, rails: int = 1) -> Text:
    """`hosts` on each leaf, `parallel` cables from each leaf to each spine; of several rails each has switches of its own.

    One adapter of a switch's aggregation node hangs on the first spine, as SHARP has it.
    """
    text = Text()
    for rail in range(rails):
        tops = [
            text.node(f"{0xA0000000 + rail * 4096 + each:016x}", f"MF0;spine{rail * spines + each + 1}:MQM8700/U1")
            for each in range(spines)
        ]
        for leaf in range(leaves):
            low = text.node(f"{0xB0000000 + rail * 4096 + leaf:016x}", f"MF0;leaf{rail * leaves + leaf + 1}:MQM8700/U1")
            for number in range(leaf * hosts + 1, (leaf + 1) * hosts + 1):
                words = f"node{number:02d} mlx5_{rail}" if rails > 1 else f"node{number:02d} HCA-1"
                text.cable(text.node(f"{0xC0000000 + rail * 65536 + number:016x}", words), low)
            for top in (top for top in tops for _ in range(parallel)):
                text.cable(low, top)
    text.cable(text.node(f"{0xCF000000:016x}", "Mellanox Technologies Aggregation Node"), f"{0xA0000000:016x}")
    return text


def star(hosts: int = 3) -> Text:
    """All on one switch."""
    text = Text()
    switch = text.node(f"{0xB0000000:016x}", "MF0;switch1:MQM8700/U1")
    for number in range(1, hosts + 1):
        text.cable(text.node(f"{0xC0000000 + number:016x}", f"node{number:02d} HCA-1"), switch)
    return text


def _letter(guid: str) -> str:
    return "H" if int(guid, 16) >= 0xC0000000 else "S"


def _kind(guid: str) -> str:
    return "CA" if _letter(guid) == "H" else "SW"
