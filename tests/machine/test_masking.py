"""What is masked in gathered text and what is not."""

import re

import pytest

from collbench.machine.gather import Mask

GUID = "b8ce:f603:00a1:2b3c"


def test_the_same_thing_has_the_same_replacement_everywhere_and_another_in_the_next_archive():
    mask = Mask("gpu-node-17.example.org")
    assert mask.text("0xb8cef60300a12b3c").removeprefix("0x") == mask.text(GUID).replace(":", "")
    assert mask.text("ssh gpu-node-17") == f"ssh {mask.file('/etc/hostname', 'gpu-node-17')}"
    assert mask.text(GUID) != Mask().text(GUID)
    serial = mask.text("Device Serial Number b8-ce-f6-03-00-a1-2b-3c").rpartition(" ")[2]
    assert serial.replace("-", ":") == mask.text("b8:ce:f6:03:00:a1:2b:3c")
    assert serial.replace("-", "") == mask.text("0xb8cef60300a12b3c").removeprefix("0x")


@pytest.mark.parametrize(
    "text",
    [
        "0000:19:00.0",
        "0000:19:00.0 -> ../../../devices/pci0000:16/0000:16:01.0/0000:19:00.0",
        "400 Gb/sec (4X NDR)",
        "0-31,64-95",
        "00:00:00:00:00:00",
        "ff:ff:ff:ff:ff:ff",
        "00000000,0000ff01",
        "PCI_ID=15B3:1021\nPCI_SUBSYS_ID=15B3:0041",
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03",
        "LnkSta: Speed 32GT/s, Width x16",
        "3b:00.0 Infiniband controller [0207]: Mellanox [15b3:1021]",
        "cap_mask 0xa751e848",
        "127.0.0.1",
        "fw_ver:\t\t229.0.111.0",
        "Firmware version: 229.0.111.0",
        "6: vlan5@eth0: <BROADCAST,UP> mtu 1500",
        "07:00.0 Serial controller [0700]: Exar Corp.",
        "[PN] Part number: MCX75310AAS-NEAT",
    ],
)
def test_what_identifies_no_user_stays(text):
    assert Mask("node1").text(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "fe80::ba6f:1cff:fe00:1",
        "fe80:0000:0000:0000:b8ce:f603:00a1:2b3c",
        "2001:db8::1",
        "00-11-22-ff-fe-33-44-55",
        "192.168.3.4",
        "root@builder7",
        "GPU-8a3f1c22-0b1d-4e5f-a6b7-c8d9e0f1a2b3",
        "pod8a3f1c22_0b1d_4e5f_a6b7_c8d9e0f1a2b3",
        "docker-" + "8a" * 32,
        "unique_id 1234567890123",
        "2001:db8:1:2:3:4:5:6",
        "::ffff:10.11.12.13",
        "Serial\t\t: 10000000abcd",
        "link/ether 02:fc:00:00:00:01 brd ff:ff:ff:ff:ff:ff",
        "altname enx02fc00000001 portid b8cef6a12b3c",
        "[VA] Vendor specific: MLX:alice",
        "gpu18.cluster.example",
    ],
)
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
