"""What is shown of the kernel's start parameters: what the rules of this project read, and no more."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.machine.readers.linux import shown


@pytest.mark.parametrize(
    ("line", "left"),
    [
        ("ro quiet iommu=pt intel_iommu=on,sm_on amd_iommu=off iommu.passthrough=1", None),
        ("pcie_aspm=off pci=noats,realloc numa_balancing=disable mitigations=auto,nosmt isolcpus=1-7 hugepagesz=1G", None),
        ("console=ttyS0,115200 panic=1 modprobe.blacklist=nouveau nvidia-drm.modeset=1 systemd.unified_cgroup_hierarchy=1", None),
        ("BOOT_IMAGE=/vmlinuz root=UUID=0b1d ip=10.1.2.3", "BOOT_IMAGE=masked root=masked ip=masked"),
        ("hunter2 alice swordfish", "masked masked masked"),
        ("https://me:pw@host/ks?x=1", "masked"),
        ("nvidia.license_key=abc cgroup_token=x pci_password=x", "nvidia.license_key=masked cgroup_token=masked pci_password=masked"),
        ('x="a secret" quiet', "x=masked masked quiet"),
        ("quiet -- --token abc quiet iommu=pt", "quiet -- masked"),
        ("quiet --", "quiet"),
        ("", ""),
    ],
)
def test_known_parameters_stay_and_of_others_the_name(line: str, left: str | None) -> None:
    assert shown(line) == (line if left is None else left)


@given(st.text(max_size=80))
def test_what_was_shown_stays_as_it_is(line: str) -> None:
    assert shown(shown(line)) == shown(line)
