"""Files from users are recognised by their content, merged per host, or rejected in one sentence."""

import bz2
import gzip
import json
import lzma
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.machine.model import Gpu, Machine, Nic, PciDevice, Port
from collbench.machine.readers.text import Reader, Unreadable
from collbench.machine.snapshot import to_json, topology_json
from collbench.machine.sources import READERS, read_paths
from tests.machine.readers import test_hwloc, test_lspci, test_rdma_tools, test_smi

A, B = "0000:19:00.0", "0000:3b:00.0"
MATRIX = """\
\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV12\tPIX\t0-31\t0
GPU1\tNV12\t X \tSYS\t32-63\t1
NIC0\tPIX\tSYS\t X \t\t

NIC Legend:

  NIC0: mlx5_0
"""
NVLINK = "GPU 0: NVIDIA A100-SXM4-80GB\n" + "".join(f"\t Link {n}: 25 GB/s\n" for n in range(12))
NVLINK += NVLINK.replace("GPU 0", "GPU 1")
LSPCI = """\
19:00.0 3D controller: NVIDIA Corporation GA100 [A100 SXM4 80GB] (rev a1)
\tLnkCap:\tPort #0, Speed 16GT/s, Width x16, ASPM not supported
\tLnkSta:\tSpeed 16GT/s (ok), Width x16 (ok)

3b:00.0 3D controller: NVIDIA Corporation GA100 [A100 SXM4 80GB] (rev a1)
\tLnkCap:\tPort #0, Speed 16GT/s, Width x16, ASPM not supported
\tLnkSta:\tSpeed 16GT/s (ok), Width x16 (ok)
"""
IBSTAT = """\
CA 'mlx5_0'
\tCA type: MT4123
\tNumber of ports: 1
\tPort 1:
\t\tState: Active
\t\tPhysical state: LinkUp
\t\tRate: 200
\t\tLink layer: InfiniBand
"""
NCCL = f"""\
<system version="1"><cpu numaid="0" affinity="ffff" arch="x86_64">
<pci busid="{A}" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">
<gpu dev="0" sm="80" rank="0" gdr="1"/></pci></cpu></system>
"""
LOG = "node1:7:7 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB\n"
EXAMPLES = {
    "nvidia-smi nvlink -s": NVLINK, "amd-smi topology": test_smi.TEXT, "nvidia-smi topo -m": MATRIX, "ibstat": IBSTAT, "lspci": LSPCI,
    "ibv_devinfo": test_rdma_tools.DEVINFO, "rdma link": test_rdma_tools.LINKS, "ibportstate": test_rdma_tools.NDR,
    "lspci | grep ACSCtl": test_lspci.ON, "hwloc XML": test_hwloc.WHOLE, "NCCL topology XML": NCCL, "iblinkinfo": test_rdma_tools.ADAPTERS,
}  # fmt: skip


def saved(folder: Path, **texts: str) -> list[Path]:
    """Files of these names (a_txt is a.txt)."""
    folder.mkdir(exist_ok=True)
    files = [folder / name.replace("_", ".") for name in texts]
    for file, text in zip(files, texts.values(), strict=True):
        file.write_text(text)
    return files


def root(folder: Path, hostname: str | None = None, device: str = "mlx5_0") -> Path:
    """A machine's root with an InfiniBand device of 100 Gb/s."""
    port = {"rate": "100 Gb/sec (4X EDR)\n", "state": "4: ACTIVE\n", "link_layer": "InfiniBand\n"}
    files = {f"sys/class/infiniband/{device}/ports/1/{name}": text for name, text in port.items()}
    files |= {"proc/sys/kernel/hostname": f"{hostname}\n"} if hostname else {}
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


class TestKinds:
    @pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.kind)
    def test_an_example_of_each_kind_is_read_as_such(self, reader: Reader, tmp_path: Path) -> None:
        """Also of readers that list no parts, such as amd-smi, ibportstate and lspci | grep ACSCtl."""
        (machine,) = read_paths(saved(tmp_path, output_log=EXAMPLES[reader.kind]))
        assert machine.sources == (f"{reader.kind} output.log",)

    @pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress, zstandard.compress])
    def test_compressed_texts(self, pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
        file = tmp_path / "lspci-vvv.txt.packed"
        file.write_bytes(pack(LSPCI.encode()))
        assert [gpu.key for gpu in read_paths([file])[0].gpus] == [A, B]

    def test_what_probe_printed(self, tmp_path: Path) -> None:
        machines = [Machine(hostname=f"node{n}", sources=("sysfs",), gpus=(Gpu("gpu0", 0),)) for n in range(3)]
        found = read_paths(saved(tmp_path, cluster_json=json.dumps({**topology_json(machines), "differences": []})))
        assert [(machine.hostname, len(machine.gpus)) for machine in found] == [("node0", 1), ("node1", 1), ("node2", 1)]
        plain = {"schema": 1, "machines": [{**to_json(machines[0]), "cpus": {}, "links": [], "findings": []}], "differences": []}
        assert read_paths(saved(tmp_path, one_json=json.dumps(plain)))[0].hostname == "node0"

    def test_a_tarball_with_the_outputs_of_tools(self, tmp_path: Path) -> None:
        folder = root(tmp_path / "tree", "node1")
        saved(folder / "outputs", topo_txt=MATRIX, broken_txt=IBSTAT.replace("MT4123", "x") * 2, other_txt="nothing")
        with tarfile.open(tmp_path / "machine.tar.gz", "w:gz") as tar:
            tar.add(folder, arcname=".")
        (machine,) = read_paths([tmp_path / "machine.tar.gz"])
        assert (machine.hostname, len(machine.gpus), [nic.name for nic in machine.nics]) == ("node1", 2, ["mlx5_0"])
        assert machine.nics[0].ports[0].rate_bits_per_s == 100e9 and machine.paths["gpu0", "mlx5_0"] == "PIX"


class TestTogether:
    def test_files_without_a_host_are_one_machine_in_any_order(self, tmp_path: Path) -> None:
        files = saved(tmp_path, a=MATRIX, b=LSPCI, c=IBSTAT, d=NVLINK)
        (machine,) = read_paths(files)
        assert [(gpu.key, gpu.index) for gpu in machine.gpus] == [(A, 0), (B, 1)]
        assert machine.links_of(A) == 12 and machine.gpu_links[0].bytes_per_s == 25e9
        assert machine.paths[A, "mlx5_0"] == "PIX" and machine.nics[0].ports[0].rate_bits_per_s == 200e9
        assert machine.pci[0].link.max_speed_gt_per_s == 16.0
        assert read_paths(files[::-1]) == [machine]

    def test_hosts_stay_apart(self, tmp_path: Path) -> None:
        found = read_paths([root(tmp_path / "a", "node1"), root(tmp_path / "b", "node2"), *saved(tmp_path / "c", m=MATRIX)])
        assert [(machine.hostname, len(machine.gpus)) for machine in found] == [("node1", 0), ("node2", 0), (None, 2)]

    def test_two_nameless_folders_are_two_machines_if_they_are_of_one_kind(self, tmp_path: Path) -> None:
        found = read_paths([root(tmp_path / "left"), root(tmp_path / "right", device="mlx5_1")])
        names = [(machine.hostname, [nic.name for nic in machine.nics]) for machine in found]
        assert names == [("left", ["mlx5_0"]), ("right", ["mlx5_1"])] and "it is named left" in found[0].doubts[-1]
        saved(tmp_path / "texts", m=MATRIX)
        (machine,) = read_paths([root(tmp_path / "tree"), tmp_path / "texts"])
        assert (machine.hostname, len(machine.gpus), len(machine.nics)) == (None, 2, 1)
        assert any(doubt.startswith("tree, texts ") for doubt in machine.doubts)

    def test_a_folder_of_files_names_what_it_passed_over(self, tmp_path: Path) -> None:
        saved(tmp_path, a_txt=MATRIX, notes_txt="remember the milk", nccl_log=LOG, e_txt="")
        actual: list[str] = []
        (machine,) = read_paths([tmp_path], actual.append)
        assert len(machine.gpus) == 2
        assert len(machine.doubts) == 1 and "left out: e.txt is empty" in machine.doubts[0]
        assert actual == ["passed over, not in a known format: nccl.log, notes.txt"]

    def test_only_the_topology_of_a_run_folder_is_of_the_machine(self, tmp_path: Path) -> None:
        """The samples are binary, and a log of NCCL beside them is of the job: neither is a doubt about the machine."""
        document = json.dumps(topology_json([Machine(hostname="node1", sources=("sysfs",), gpus=(Gpu("gpu0", 0),))]))
        saved(tmp_path, run_json="{}", cells_jsonl="", topology_json=document, topo_txt=MATRIX)
        (tmp_path / "samples.bin").write_bytes(bytes(64))
        actual: list[str] = []
        (machine,) = read_paths([tmp_path], actual.append)
        assert (machine.hostname, len(machine.gpus), machine.doubts, actual) == ("node1", 1, (), [])

    def test_a_root_and_a_tools_output_of_one_host(self, tmp_path: Path) -> None:
        paths = [*saved(tmp_path / "texts", a=IBSTAT), root(tmp_path / "tree", "node1.cluster")]
        (machine,) = read_paths(paths)
        assert machine.hostname == "node1.cluster"
        assert machine.nics[0].ports[0].rate_bits_per_s == 100e9  # the kernel's word first
        (other,) = (one for one in machine.disagreements if one.path.endswith("rate_bits_per_s"))
        assert (other.taken, other.other, other.other_from) == ("100 Gb/s", "200 Gb/s", "ibstat a")


class TestRefused:
    @pytest.mark.parametrize(("data", "expected"), [
        (b"", "is empty"), (b"\n \n", "is empty"), (b"\x7fELF\x00\x00\x01\x02", "is binary"),
        (b"remember the milk\n", "is not in a known format: give "),
        (LOG.encode(), "is a log of NCCL: read it with `collbench doctor --log`"),
        (b'{"schema": 1, "machines": [', "not valid JSON"), (b'{"schema": 9, "machines": []}', "is JSON, but no"),
        (b'{"schema": 1, "machines": ' + b"[" * 100_000, "not valid JSON"), (gzip.compress(LSPCI.encode())[:-9], "cannot be read"),
        (b"\x28\xb5\x2f\xfd" + b"\xff" * 50, "is damaged"), (b"\xfd7zXZ\x00" + b"\xff" * 50, "is damaged"),
        (NCCL.encode()[:60] + b"</cpu>", ""),
    ])  # fmt: skip
    def test_one_sentence(self, data: bytes, expected: str, tmp_path: Path) -> None:
        file = tmp_path / "x"
        file.write_bytes(data)
        with pytest.raises(Unreadable) as refused:
            read_paths([file])
        assert expected in str(refused.value) and "\n" not in str(refused.value) and str(refused.value).startswith(("x", f"{tmp_path}/x"))

    @pytest.mark.parametrize(("path", "why"), [
        ("nowhere", "is not there"), ("nowhere/deep", "is not there"), ("\n", "is not there"), ("a\0b", r"a\?b cannot be read"),
        ("pipe", "is a pipe: name a file"), ("/dev/zero", "is a device: name a file"), ("hwloc", "hwloc is hwloc XML"),
        ("empty", "in 0 files and no sys or proc"), ("tree", "in 0 files and sys or proc"), ("logs", "collbench doctor --log"),
        ("huge", "huge is larger than 64 MiB"), ("bomb.gz", "larger than 64 MiB"),
    ])  # fmt: skip
    def test_what_is_no_machine(self, path: str, why: str, tmp_path: Path) -> None:
        """Devices and pipes are never opened, and a huge file is not read whole."""
        os.mkfifo(tmp_path / "pipe")
        (tmp_path / "empty").mkdir()
        (tmp_path / "tree/sys").mkdir(parents=True)
        saved(tmp_path / "logs", a=LOG, b="")
        saved(tmp_path, hwloc='<topology version="2.0"><object type="Machine"/></topology>', huge=MATRIX)
        os.truncate(tmp_path / "huge", 100 << 20)
        if path == "bomb.gz":
            (tmp_path / "bomb.gz").write_bytes(gzip.compress(b"a" * (65 << 20), 1))
        with pytest.raises(Unreadable, match=why):
            read_paths([tmp_path / path if path.isprintable() else Path(path)])

    def test_pipes_and_links_in_circles_in_a_folder_are_passed_over(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        (tmp_path / "loop").symlink_to("loop")
        (tmp_path / "up").symlink_to("..")
        saved(tmp_path, m=MATRIX)
        assert len(read_paths([tmp_path])[0].gpus) == 2

    @pytest.mark.parametrize("rate", [-5.0, 1e18])
    def test_a_speed_that_no_machine_has(self, rate: float, tmp_path: Path) -> None:
        machine = Machine("node1", nics=(Nic("mlx5_0", ports=(Port(rate_bits_per_s=rate),)),))
        with pytest.raises(Unreadable, match=r"(-5|1e\+18) at nics/mlx5_0"):
            read_paths(saved(tmp_path, x_json=json.dumps(topology_json([machine]))))

    def test_parents_in_a_circle_end_the_tree_with_a_doubt(self, tmp_path: Path) -> None:
        machine = Machine("node1", ("x",), pci=(PciDevice(A, "gpu", B), PciDevice(B, "switch", A)))
        (found,) = read_paths(saved(tmp_path, x_json=json.dumps(topology_json([machine]))))
        assert len(found.doubts) == 1 and f"PCI device {A} is above itself" in found.doubts[0]

    def test_unreadable_by_permission(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (file,) = saved(tmp_path, m=MATRIX)
        refuse = Mock(side_effect=PermissionError(13, "Permission denied"))  # tests may run as root, which no mode stops
        monkeypatch.setattr(os, "open", refuse)
        with pytest.raises(Unreadable, match="may not be read by you"):
            read_paths([file])


@settings(max_examples=60)
@given(
    text=st.sampled_from([MATRIX, NVLINK, LSPCI, IBSTAT, NCCL]), at=st.integers(0, 2000), cut=st.integers(0, 300),
    put=st.binary(max_size=20),
)  # fmt: skip
def test_damaged_files_are_read_or_refused(text: str, at: int, cut: int, put: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    data = text.encode()
    file = tmp_path_factory.getbasetemp() / "damaged"
    file.write_bytes(data[: at % len(data)] + put + data[at % len(data) + cut :])
    try:
        (machine,) = read_paths([file])
        assert machine.sources and all(isinstance(nic, Nic) for nic in machine.nics)
    except Unreadable as refused:
        assert "\n" not in str(refused)


class TestSeveralOutputsInOneFile:
    """What people paste one below the other is read as if each output were a file of its own."""

    @pytest.mark.parametrize(("first", "second"), [
        (MATRIX, NVLINK), (NVLINK, MATRIX), (f"$ nvidia-smi topo -m\n{MATRIX}", f"$ nvidia-smi nvlink -s\n{NVLINK}"),
    ])  # fmt: skip
    def test_a_matrix_and_the_links_below_it(self, first: str, second: str, tmp_path: Path) -> None:
        (one,) = read_paths(saved(tmp_path / "pasted", pasted_txt=f"{first}\n{second}"))
        (two,) = read_paths(saved(tmp_path / "files", first_txt=first, second_txt=second))
        assert (one.gpus, one.nics, one.gpu_links, one.paths) == (two.gpus, two.nics, two.gpu_links, two.paths)
        assert {gpu.model for gpu in one.gpus} == {"NVIDIA A100-SXM4-80GB"} and [gpu.numa for gpu in one.gpus] == [0, 1]

    def test_all_tools_of_a_ticket(self, tmp_path: Path) -> None:
        file = tmp_path / "ticket.txt"
        file.write_text(f"Hello,\n```\n{LSPCI}```\n{IBSTAT}\n====\n{NVLINK}\n====\n{MATRIX}\nthanks")
        (machine,) = read_paths([file])
        assert [gpu.address for gpu in machine.gpus] == [A, B] and len(machine.pci) == 2
        assert [nic.name for nic in machine.nics] == ["mlx5_0"] and machine.nics[0].ports
        assert machine.links_of(A) == 12 and machine.paths[A, "mlx5_0"] == "PIX"
        assert len(machine.sources) == 4

    @pytest.mark.parametrize(("text", "doubt"), [
        (MATRIX + NVLINK.replace("Link 3: 25 GB/s", "Link 3: 2? GB/s"), "left out: pasted.txt: "),  # a damaged part
        (MATRIX + "\n" + MATRIX + NVLINK.replace("GPU 0", "GPU 5"), "2 topology matrices"),  # of two machines
    ])  # fmt: skip
    def test_a_part_that_cannot_be_read_is_a_doubt(self, text: str, doubt: str, tmp_path: Path) -> None:
        (tmp_path / "pasted.txt").write_text(text)
        (machine,) = read_paths([tmp_path / "pasted.txt"])
        assert len(machine.gpus) == 2 and any(doubt in found for found in machine.doubts)
