"""What holds for every reader of a text: it recognizes its own text alone, and reads any text, or refuses it in one sentence."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.machine.model import Machine
from collbench.machine.readers.text import LONGEST_TAG, Reader, Unreadable
from collbench.machine.sources import READERS
from tests.machine.readers import test_smi as amd
from tests.machine.readers.nccl_files import ADDRESS, pci, system
from tests.machine.readers.test_lspci import NUMBERED, SERVER
from tests.machine.readers.test_rdma_tools import LINKS_JSON, NDR, OLD_LINKS, STATUS, SWITCHES
from tests.machine.readers.test_smi import ACCESS, BRIDGED, ROCM, status
from tests.machine.test_sources import EXAMPLES

READER = {reader.kind: reader for reader in READERS}
MATRIX, NVLINK = "nvidia-smi topo -m", "nvidia-smi nvlink -s"
TEXTS = [
    *EXAMPLES.items(), ("ibstat", STATUS), ("rdma link", LINKS_JSON), ("rdma link", OLD_LINKS),
    ("lspci | grep ACSCtl", f"[root@n1 ~]# lspci -vvv | grep ACSCtl\n{EXAMPLES['lspci | grep ACSCtl']}[root@n1 ~]# \n"),
    ("iblinkinfo", SWITCHES), ("lspci", NUMBERED), ("amd-smi topology", amd.JSON), (MATRIX, ACCESS), (MATRIX, ROCM),
    ("ibv_devinfo", "$ ibv_devinfo\n" + EXAMPLES["ibv_devinfo"]), ("NCCL topology XML", '<graphs version="1"><graph id="0"/></graphs>'),
]  # fmt: skip
OF_NO_READER = ["", "hello\n", "\n" * 70_000, "-[0000:00]-+-00.0\n", "GPU 0: NVIDIA A100\n", "<html/>", "<topology/>", '{"machines": []}']


@pytest.mark.parametrize(("kind", "text"), TEXTS)
def test_a_text_is_recognized_by_its_own_reader_alone(kind: str, text: str) -> None:
    assert [reader.kind for reader in READERS if reader.looks_like(text)] == [kind]


@pytest.mark.parametrize("text", OF_NO_READER)
def test_other_text_is_recognized_by_none(text: str) -> None:
    assert not any(reader.looks_like(text) for reader in READERS)


AGAIN = "`lspci -vvv`"
BOMB = '<!DOCTYPE t [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>{}'
AMD = amd.TEXT
NOT_READ = [
    ("ibstat", "", "has no line like \"CA 'mlx5_0'\""), ("ibstat", "hca_id: mlx5_0\n", "has no line like \"CA 'mlx5_0'\""),
    ("ibstat", "Port 1:\nState: Active\n", "has no line like \"CA 'mlx5_0'\""),
    ("ibstat", "".join(f"CA 'mlx5_{number}'\n" for number in range(2000)), "lists 2000 devices"),
    ("ibv_devinfo", "", "has no hca_id line"), ("ibv_devinfo", "CA 'mlx5_0'\n", "has no hca_id line"),
    ("ibv_devinfo", "hca_id:\n", "has no hca_id line"),
    ("ibv_devinfo", "".join(f"hca_id: mlx5_{number}\n" for number in range(2000)), "lists 2000 devices"),
    ("iblinkinfo", "", "holds no link of iblinkinfo"), ("iblinkinfo", "CA: node1 mlx5_0:\n", "holds no link of iblinkinfo"),
    ("iblinkinfo", '0x1 6 1[  ] ==( 4X 25.78125 Gbps Active/ LinkUp)==> 3 3[  ] "s" ( )', "holds no link of iblinkinfo"),
    ("ibportstate", NDR.replace("CA/RT", "Switch"), "describes the port of a switch"),
    ("ibportstate", NDR.replace("Lid:.............................21", "Lid:.............................0"), "has no Lid or no LinkWidth"),
    ("lspci", "", f"has no PCI functions: save the whole output of {AGAIN}"),
    ("lspci", "\t\tLnkSta: Speed 5GT/s, Width x1\n", f"link lines without the devices they belong to: save the whole output of {AGAIN}"),
    ("lspci", SERVER + SERVER, "lists 0000:00:00.0 twice"),
    ("lspci | grep ACSCtl", EXAMPLES["lspci | grep ACSCtl"] + "\t\tACSCtl:\tnone\n", "has no bits of ACSCtl"),
    *((NVLINK, status(6, off=(0,)).replace("\t Link 0: <inactive>", f"\t Link {line}"), "not an NVLink status")
        for line in ("0: -25 GB/s", "0: 1000000000000000000 GB/s", "0: 0 GB/s", "0: GB/s", "5: 25 GB/s")),
    (NVLINK, "", "lists no GPU"), (NVLINK, "\t Link 0: 25 GB/s\n", "not an NVLink status"), (NVLINK, status() * 2, "of a GPU twice"),
    (MATRIX, "", "`nvidia-smi topo -m`"), (MATRIX, "GPU0", "`nvidia-smi topo -m`"), (MATRIX, "\tGPU0\tGPU1\n", "`nvidia-smi topo -m`"),
    (MATRIX, "GPU 0: NVIDIA A100\n\t Link 0: 25 GB/s\n", "`nvidia-smi topo -m`"),
    (MATRIX, BRIDGED + BRIDGED, "2 topology matrices"), (MATRIX, BRIDGED + "\n".join(BRIDGED.splitlines()[1:]), "two rows GPU0"),
    (MATRIX, ROCM.replace("GPU1   XGMI         0 ", "GPU1   0            XGMI "), "row GPU1 does not fit its heading"),
    (MATRIX, ROCM + ROCM, "has two tables Link Type between two GPUs"),
    ("amd-smi topology", AMD.replace(f"{amd.B} XGMI         SELF         PCIE        ", f"{amd.B} XGMI         SELF"), f"row {amd.B} does"),
    ("amd-smi topology", AMD + AMD, "has two tables ACCESS"), ("amd-smi topology", "LINK TYPE TABLE:\n", "lists no GPU"),
    ("amd-smi topology", amd.JSON[:-200], "invalid JSON"),
    ("amd-smi topology", amd.JSON.replace('"gpu": 1,\n        "bdf"', '"gpu": null,\n        "bdf"'), "an entry has no 'gpu' and 'bdf'"),
    ("hwloc XML", " " * (33 << 20), "hwloc XML"), ("hwloc XML", EXAMPLES["hwloc XML"][:999], "is broken XML"),
    ("hwloc XML", BOMB.format('<topology><object type="&b;"/></topology>'), "is broken XML"), ("hwloc XML", "", "is broken XML"),
    ("hwloc XML", '<!DOCTYPE t [<!ENTITY a SYSTEM "file:///etc/passwd">]><topology><object type="&a;"/></topology>', "is broken XML"),
    ("hwloc XML", "\x00\x01", "is broken XML"), ("hwloc XML", "<system/>", "no <topology>"),
    ("hwloc XML", "<topology/>", "0 objects of type Machine"),
    ("hwloc XML", '<topology><object type="Machine"/><object type="Machine"/></topology>', "2 objects of type Machine"),
    ("hwloc XML", "<topology a='" + "0x1," * (1 << 19) + "'/>", "a tag longer than 1 Mi characters"),
    ("hwloc XML", "<topology>" + "<object>" * 300 + "</object>" * 300 + "</topology>", "nests deeper"),
    ("NCCL topology XML", "<html/>", "not with NCCL's <system>"),
    ("NCCL topology XML", BOMB.format('<system><cpu numaid="&b;"/></system>'), "topo?.txt is broken XML ("),
    ("NCCL topology XML", '<system><cpu numaid="0">' + "<pci>" * 100_000, "nests deeper"),
    ("NCCL topology XML", "<system>" + "<cpu/>" * 200_001 + "</system>", "more elements"),
    ("NCCL topology XML", "<system a='" + "x" * LONGEST_TAG + "'/>", "tag longer than 1 Mi"),
    ("NCCL topology XML", system(pci("rm -rf")), "busid 'rm -rf'"),
    ("NCCL topology XML", system(pci(ADDRESS, pci(ADDRESS))), f"it names {ADDRESS} twice"),
    ("NCCL topology XML", "<topology><object/></topology>", "not with NCCL's <system>"),
    ("NCCL topology XML", '<graphs version="1"><graph id="0"/></graphs>', "NCCL_TOPO_DUMP_FILE"),
    ("NCCL topology XML", '<graphs version="1"><graph id="0"/></graphs>', "rings and trees"),
    ("NCCL topology XML", '<system version="1"/>', "names no PCI device"),
    ("NCCL topology XML", EXAMPLES["NCCL topology XML"][:200], "is broken XML ("),
    ("NCCL topology XML", EXAMPLES["NCCL topology XML"][:-5], "is broken XML ("),
    ("NCCL topology XML", "not xml", "topo"), ("NCCL topology XML", "\ud800", "topo"),
    ("NCCL topology XML", '<?xml version="1.0" encoding="nonsense"?>', "topo"),
    *((kind, EXAMPLES[kind] + " " * (9 << 20), "has 9 Mi characters") for kind in ("ibstat", "ibv_devinfo", "NCCL topology XML")),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "text", "why"), NOT_READ, ids=range(len(NOT_READ)))
def test_what_cannot_be_read_is_refused_in_one_sentence(kind: str, text: str, why: str) -> None:
    with pytest.raises(Unreadable) as refused:
        READER[kind].read(text, "topo\n.txt")
    assert why in str(refused.value) and "\n" not in str(refused.value) and "topo?.txt" in str(refused.value)


PIECES = [
    "", "\t", " ", '"', "-1", "9" * 30, "\x00", "\n", "X", "NV4", "PIX", "Port 1:", "\n\t\tport:\t1\n", "<gpu/>", "<net/>", "</pci>", "x16",
]  # fmt: skip


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.kind)
@settings(max_examples=50)
@given(st.data(), st.text(max_size=300) | st.sampled_from(PIECES), st.integers(0, 40))
def test_any_text_and_any_change_of_a_good_text_is_read_or_refused(reader: Reader, data: st.DataObject, put: str, cut: int) -> None:
    whole = data.draw(st.sampled_from([text for kind, text in TEXTS if kind == reader.kind]))
    at = data.draw(st.integers(0, len(whole)))
    for text in (put, whole[:at] + put[:12] + whole[at + cut :], whole[at:]):
        reader.looks_like(text)
        try:
            machine = reader.read(text, "x")
        except Unreadable as refused:
            assert "\n" not in str(refused)
            continue
        assert isinstance(machine, Machine) and json.dumps(list(machine.doubts))
        assert all(port.rate_bits_per_s is None or 0 < port.rate_bits_per_s < 4e12 for nic in machine.nics for port in nic.ports)
        assert all(0 <= link.count <= 2000 for link in machine.gpu_links)
