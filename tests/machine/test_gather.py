"""probe --gather: the archive reads back to the same machine, holds nothing that names it, and never takes a file's place."""

import re
import tarfile
from pathlib import Path

import pytest
from msgspec.structs import replace

from collbench.errors import FINE, UsageError
from collbench.machine import gather
from collbench.machine.archive import open_archive
from collbench.machine.files import Files, Folder, RecordedFiles
from collbench.machine.gather import Mask
from collbench.machine.readers import linux, network
from tests.machine.trees import Tree

PCI = "/sys/devices/pci0000:16/0000:16:01.0"
GUID = "b8ce:f603:00a1:2b3c"
SECRETS = (
    GUID, "b8:ce:f6:a1:2b:3c", "gpu-node-17", "hunter2", "GPU-8a3f1c22-0b1d-4e5f-a6b7-c8d9e0f1a2b3", "10.11.12.13", "MT2334X00112",
    "nfs.example.org", "alice", "uid_1000", "4711", "swordfish", "acme.example", "AST-77",
)  # fmt: skip

HCA, LAN = f"{PCI}/0000:19:00.0", f"{PCI}/0000:1a:00.0"
COMMAND_LINE = (
    "BOOT_IMAGE=/vmlinuz root=UUID=0b1d8a3f-1c22-4e5f-a6b7-c8d9e0f1a2b3 quiet iommu=pt intel_iommu=on "
    "api.token=hunter2 ip=10.11.12.13 https://nfs.example.org/ks?a=1 swordfish -- --user alice"
)
FILES = {
    "/proc/cpuinfo": "processor\t: 0\nmodel name\t: A CPU\nphysical id\t: 0\ncore id\t: 0\nflags\t: fpu\n\n",
    "/proc/cmdline": COMMAND_LINE, "/proc/meminfo": "MemTotal:       1056763084 kB\n",
    "/proc/mounts": "/dev/sda1 / ext4 rw 0 0\nnfs.example.org:/home /home nfs4 rw,addr=10.11.12.13 0 0\n",
    "/proc/self/cgroup": "1:cpu:/slurm/uid_1000/job_4711/step_0\n0::/system.slice/slurmstepd.scope/alice\n",
    "/proc/version": "Linux version 6.1.0-56-amd64 (alice@build.acme.example) (gcc 12) #1 SMP",
    "/proc/self/environ": "PASSWORD=hunter2", "/proc/sys/kernel/hostname": "gpu-node-17", "/proc/sys/kernel/osrelease": "6.1.0-56-amd64",
    "/etc/hostname": "gpu-node-17", f"{PCI}/class": "0x060400", f"{PCI}/vendor": "0x8086", f"{PCI}/device": "0x352a",
    f"{HCA}/class": "0x020700", f"{HCA}/vendor": "0x15b3", f"{HCA}/device": "0x1021", f"{HCA}/numa_node": "1",
    f"{HCA}/current_link_speed": "32.0 GT/s PCIe", f"{HCA}/current_link_width": "16", f"{HCA}/vpd": "MT2334X00112",
    f"{HCA}/infiniband/mlx5_0/node_guid": GUID, f"{HCA}/infiniband/mlx5_0/fw_ver": "28.41.1000",
    f"{HCA}/infiniband/mlx5_0/hca_type": "MT4129", f"{HCA}/infiniband/mlx5_0/node_desc": "gpu-node-17 mlx5_0",
    f"{HCA}/infiniband/mlx5_0/ports/1/rate": "400 Gb/sec (4X NDR)", f"{HCA}/infiniband/mlx5_0/ports/1/state": "4: ACTIVE",
    f"{HCA}/infiniband/mlx5_0/ports/1/link_layer": "InfiniBand", f"{HCA}/infiniband/mlx5_0/ports/1/lid": "0x12",
    f"{HCA}/infiniband/mlx5_0/ports/1/counters/symbol_error": "3", f"{HCA}/net/ibs1/mtu": "2044", f"{LAN}/class": "0x020000",
    f"{LAN}/net/enxb8cef6a12b3c/speed": "25000", f"{LAN}/net/enxb8cef6a12b3c/mtu": "1500",
    f"{LAN}/net/enxb8cef6a12b3c/address": "b8:ce:f6:a1:2b:3c",
    "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03\n",
}  # fmt: skip
LINKS = {
    "/sys/bus/pci/devices/0000:16:01.0": "../../../devices/pci0000:16/0000:16:01.0",
    "/sys/bus/pci/devices/0000:19:00.0": "../../../devices/pci0000:16/0000:16:01.0/0000:19:00.0",
    "/sys/bus/pci/devices/0000:1a:00.0": "../../../devices/pci0000:16/0000:16:01.0/0000:1a:00.0",
    "/sys/class/infiniband/mlx5_0": f"../..{HCA[4:]}/infiniband/mlx5_0",
    "/sys/class/infiniband/scif0": "../../devices/scif_dma_0/infiniband/scif0",
    "/sys/class/net/ibs1": f"../..{HCA[4:]}/net/ibs1", "/sys/class/net/enxb8cef6a12b3c": f"../..{LAN[4:]}/net/enxb8cef6a12b3c",
    f"{LAN}/net/enxb8cef6a12b3c/device": "../..",
}  # fmt: skip
READERS = (linux.read, network.read, network.read_ethernet)
NOTHING = gather.Parts({}, {}, set())


def packed(files: Files, to: Path, commands=None) -> Path:
    """The archive of a machine, as it is given to others."""
    gather.write(to, gather.collect(files, commands or {}))
    return to


def open_packed(files: Files, to: Path) -> Path:
    """What the readers read, with nothing masked."""
    recorded = RecordedFiles(files)
    for read in READERS:
        read(recorded)
    gather.write(to, gather.Parts(*recorded.renamed(lambda path: path, lambda _, text: text)))
    return to


def test_a_machine_reads_back_the_same_and_again(tmp_path):
    tree = Tree(FILES, LINKS)
    archive = open_archive(open_packed(tree, tmp_path / "m.tar.zst"))
    again = open_archive(open_packed(archive, tmp_path / "again.tar"))
    assert [read(archive) for read in READERS] == [read(tree) for read in READERS] == [read(again) for read in READERS]
    assert network.read(archive).nics[0].ports[0].rate_bits_per_s == 400e9
    assert archive.doubts == ()
    assert archive.text(f"{HCA}/vpd") is None  # listed and not read: it is there without content
    device = "/sys/class/infiniband/mlx5_0"
    assert "node_desc" not in archive.names(device) or archive.text(f"{device}/node_desc") is None


@pytest.mark.contract
def test_this_machine_reads_back_the_same(tmp_path):
    files = Folder(Path("/"))
    archive = open_archive(open_packed(files, tmp_path / "m.tar.gz"))
    assert (linux.read(archive), network.read(archive)) == (linux.read(files), network.read(files))
    there, here = network.read_ethernet(archive), network.read_ethernet(files)
    unshaped = [replace(nic, ports=tuple(replace(port, shaped_bits_per_s=None) for port in nic.ports)) for nic in here.nics]
    assert list(there.nics) == unshaped  # tc is asked on the live machine alone


def test_its_manifest_names_the_files_that_are_in_it(tmp_path):
    with tarfile.open(packed(Tree(FILES, LINKS), tmp_path / "m.tar")) as tar:
        manifest = tar.extractfile("MANIFEST").read().decode()
        files = [f"/{member.name}" for member in tar if member.isreg() and member.name != "MANIFEST"]
    assert [line for line in manifest.splitlines() if line.startswith("/")] == files
    assert any("/net/enx" in file for file in files)


def test_masked_it_is_the_same_but_for_its_names(tmp_path):
    tree = Tree(FILES, LINKS)
    archive = open_archive(packed(tree, tmp_path / "m.tar"))
    here, there = network.read(tree), network.read(archive)
    assert [replace(nic, guid=None) for nic in there.nics] == [replace(nic, guid=None) for nic in here.nics]
    assert there.nics[0].guid not in {None, GUID}
    here, there = linux.read(tree), linux.read(archive)
    unnamed = [replace(each, hostname=None, system=replace(each.system, command_line=None)) for each in (there, here)]
    assert unnamed[0] == unnamed[1]
    line = "BOOT_IMAGE=masked root=masked quiet iommu=pt intel_iommu=on api.token=masked ip=masked masked masked -- masked"
    assert there.system.command_line == line


@pytest.mark.contract
def test_no_secret_is_in_it(tmp_path):
    text = "Capabilities: [SN] Serial number: MT2334X00112\nGUID 0xb8cef60300a12b3c on gpu-node-17, peer 10.11.12.13\n"
    commands = {"lspci-vvvnn.txt": ("printf", text)}
    with tarfile.open(packed(Tree(FILES, LINKS), tmp_path / "m.tar", commands=commands)) as tar:
        texts = [tar.extractfile(member).read().decode() if member.isreg() else "" for member in tar]
        held = "\n".join([*texts, *(f"{member.name} {member.linkname}" for member in tar)])
    assert not [secret for secret in (*SECRETS, "b8cef603", "b8cef6a12b3c", "PASSWORD") if secret in held]
    assert "0000:19:00.0" in held  # PCI addresses are public


def test_a_job_stays_a_job_and_names_none(tmp_path):
    archive = open_archive(packed(Tree(FILES, LINKS), tmp_path / "m.tar"))
    assert archive.text("/proc/self/cgroup") == "1:cpu:/slurm/masked/job_0/masked\n0::/masked/slurm/masked"
    assert linux.read(archive).system.container == linux.read(Tree(FILES, LINKS)).system.container == "slurm"


@pytest.mark.parametrize(("group", "container"), [
    ("0::/kubepods.slice/kubepods-burstable.slice/kubepods-pod8a3f.slice/cri-containerd-8a3f.scope", "kubernetes"),
    ("0::/machine.slice/libpod-8a3f.scope/alice", "podman"), ("0::/docker/8a3f", "docker"),
    ("0::/system.slice/docker-8a3f.scope", "docker"), ("0::/lxc.payload.alice/init.scope", "lxc"),
    ("0::/user.slice/user-1000.slice/session-3.scope", ""), ("0::/", ""),
])  # fmt: skip
def test_what_encloses_it_is_read_from_what_is_left_of_its_groups(group, container, tmp_path):
    tree = Tree({**FILES, "/proc/self/cgroup": group}, LINKS)
    archive = open_archive(packed(tree, tmp_path / "m.tar"))
    assert linux.read(archive).system.container == linux.read(tree).system.container == container
    assert not [word for word in ("8a3f", "alice", "1000") if word in archive.text("/proc/self/cgroup")]


@pytest.mark.parametrize("hostname", ["node", "devices", "0000"])
def test_a_hostname_that_is_a_word_of_the_kernels_breaks_no_path(hostname, tmp_path):
    tree = Tree({**FILES, "/proc/sys/kernel/hostname": hostname, "/etc/hostname": hostname}, LINKS)
    archive = open_archive(packed(tree, tmp_path / "m.tar"))
    assert archive.real("/sys/class/infiniband/mlx5_0") == f"{HCA}/infiniband/mlx5_0"
    assert linux.read(archive).pci == linux.read(tree).pci


@pytest.mark.contract
@pytest.mark.parametrize("suffix", gather.SUFFIXES)
def test_the_suffix_shows_how_it_is_packed(suffix, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gather, "COMMANDS", {"echo.txt": ("echo", "NVLink"), "gone.txt": ("no-such-tool",), "fails.txt": ("false",)})
    target = tmp_path / f"machine{suffix}"
    assert gather.gather(target) == FINE
    start = {".tar": b"", ".tar.gz": b"\x1f\x8b", ".tar.xz": b"\xfd7zXZ", ".tar.zst": b"\x28\xb5\x2f\xfd"}[suffix]
    assert target.read_bytes().startswith(start)
    archive = open_archive(target)
    assert archive.names("/outputs") == ("echo.txt",)
    assert archive.text("/outputs/echo.txt") == "NVLink"
    manifest = archive.text("/MANIFEST").splitlines()
    lines = {"  echo NVLink: code 0, 7 bytes", "  no-such-tool: not installed", "  false: code 1, 0 bytes", "/outputs/echo.txt"}
    assert lines <= {*manifest}
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"wrote {target}: ")
    assert [path.name for path in tmp_path.iterdir()] == [target.name]
    assert target.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("name", ["machine.zip", "machine", ".tar", "machine.tar.bz2", "m\x1b[31m.tgz"])
def test_another_suffix_is_refused(name, tmp_path):
    with pytest.raises(UsageError, match=r"\.tar, \.tar\.gz, \.tar\.xz or \.tar\.zst") as why:
        gather.gather(tmp_path / name)
    assert "\x1b" not in str(why.value)
    assert not list(tmp_path.iterdir())


def test_what_is_there_is_never_overwritten(tmp_path):
    target = tmp_path / "machine.tar"
    target.write_text("precious")
    with pytest.raises(UsageError, match=r"machine\.tar is there already"):
        gather.gather(target)
    with pytest.raises(UsageError, match="is there already"):  # made while we gathered
        gather.write(target, NOTHING)
    assert target.read_text() == "precious"
    (tmp_path / "dangling.tar").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="is there already"):
        gather.gather(tmp_path / "dangling.tar")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dangling.tar", "machine.tar"]


def test_a_folder_that_cannot_hold_it_and_an_archive_that_fails_half_way_leave_nothing(tmp_path):
    class Half(dict):
        def items(self):
            yield "/sys/half", "1"
            raise KeyboardInterrupt

    with pytest.raises(UsageError, match="not a folder"):
        gather.gather(tmp_path / "gone" / "machine.tar")
    with pytest.raises(UsageError, match="cannot be written"):
        gather.write(Path("/proc/machine.tar"), NOTHING)
    with pytest.raises(KeyboardInterrupt):
        gather.write(tmp_path / "machine.tar", NOTHING._replace(texts=Half()))
    assert not list(tmp_path.iterdir())


def test_the_same_thing_has_the_same_replacement_everywhere_and_another_in_the_next_archive():
    mask = Mask("gpu-node-17.example.org")
    assert mask.text("0xb8cef60300a12b3c").removeprefix("0x") == mask.text(GUID).replace(":", "")
    assert mask.text("ssh gpu-node-17") == f"ssh {mask.file('/etc/hostname', 'gpu-node-17')}"
    assert mask.text(GUID) != Mask().text(GUID)
    serial = mask.text("Device Serial Number b8-ce-f6-03-00-a1-2b-3c").rpartition(" ")[2]
    assert serial.replace("-", ":") == mask.text("b8:ce:f6:03:00:a1:2b:3c")
    assert serial.replace("-", "") == mask.text("0xb8cef60300a12b3c").removeprefix("0x")


@pytest.mark.parametrize("text", [
    "0000:19:00.0", "0000:19:00.0 -> ../../../devices/pci0000:16/0000:16:01.0/0000:19:00.0", "400 Gb/sec (4X NDR)", "0-31,64-95",
    "00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff", "00000000,0000ff01", "PCI_ID=15B3:1021\nPCI_SUBSYS_ID=15B3:0041",
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03", "LnkSta: Speed 32GT/s, Width x16",
    "3b:00.0 Infiniband controller [0207]: Mellanox [15b3:1021]", "cap_mask 0xa751e848", "127.0.0.1", "fw_ver:\t\t229.0.111.0",
    "Firmware version: 229.0.111.0", "6: vlan5@eth0: <BROADCAST,UP> mtu 1500", "07:00.0 Serial controller [0700]: Exar Corp.",
    "[PN] Part number: MCX75310AAS-NEAT",
])  # fmt: skip
def test_what_identifies_no_user_stays(text):
    assert Mask("node1").text(text) == text


@pytest.mark.parametrize("text", [
    "fe80::ba6f:1cff:fe00:1", "fe80:0000:0000:0000:b8ce:f603:00a1:2b3c", "2001:db8::1", "00-11-22-ff-fe-33-44-55", "192.168.3.4",
    "root@builder7", "GPU-8a3f1c22-0b1d-4e5f-a6b7-c8d9e0f1a2b3", "pod8a3f1c22_0b1d_4e5f_a6b7_c8d9e0f1a2b3", "docker-" + "8a" * 32,
    "unique_id 1234567890123", "2001:db8:1:2:3:4:5:6", "::ffff:10.11.12.13", "Serial\t\t: 10000000abcd",
    "link/ether 02:fc:00:00:00:01 brd ff:ff:ff:ff:ff:ff", "altname enx02fc00000001 portid b8cef6a12b3c", "[VA] Vendor specific: MLX:alice",
    "gpu18.cluster.example",
])  # fmt: skip
def test_what_identifies_a_user_is_masked(text):
    masked = Mask("node1.cluster.example").text(text)
    assert masked != text
    assert not {word for word in re.findall(r"\w{4,}", text) if re.search(r"\d", word)} & set(re.findall(r"\w{4,}", masked))


def test_a_path_keeps_the_kernels_words_and_loses_what_names_a_device():
    mask = Mask("devices.cluster.example")
    path = "/sys/devices/LNXSYSTM:00/VMBUS:00/47505500-0001-0000-3130-444531303244/pci0001:00/0001:00:00.0/net/enxb8cef6a12b3c"
    masked = mask.path(path)
    assert masked.startswith("/sys/devices/LNXSYSTM:00/VMBUS:00/")
    assert "/pci0001:00/0001:00:00.0/net/enx" in masked
    assert "47505500" not in masked
    assert masked.endswith(mask.text("enxb8cef6a12b3c"))
