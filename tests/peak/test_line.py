"""A rate beside its ceilings, as people read it, and what may be typed for hardware."""

import pytest
from msgspec.structs import replace

from collbench.errors import UsageError
from collbench.machine.peak.collective import ceilings
from collbench.machine.peak.comparison import headline, lines
from collbench.machine.peak.limits import NicLimit, PcieLimit, limited_by
from collbench.machine.peak.node import Job, UserOverride, node_from_user, node_of, parse_gigabytes, parse_nic, parse_pcie
from tests.peak.made import gpus, wired

FOUR = Job((node_from_user(8, UserOverride((4, 100e9), 150e9)),) * 4)


def headline_of(measured, job=FOUR, operation="allreduce"):
    return headline(measured and measured * 1e9, ceilings(operation, job))


def test_the_headline_has_both_percentages_for_any_rate():
    assert headline_of(42) == "42.0 of 48.0 GB/s: 88 % of expected (ring), 65 % of the hard limit (64.6 GB/s)"
    assert headline_of(60) == "60.0 of 48.0 GB/s: 125 % of expected (ring), 93 % of the hard limit (64.6 GB/s)"
    assert headline_of(70) == "70.0 GB/s is above the hard limit of 64.6 GB/s: model inputs doubtful"
    assert headline_of(None) == "48.0 GB/s expected (ring), 64.6 GB/s hard limit"


@pytest.mark.parametrize("nvls", [None, False])
def test_nothing_flips_between_449_and_451(nvls):
    """8 GPUs with 450 GB/s each: with NVLink SHARP the hard limit is 700 GB/s, without it 450."""
    job = Job((node_from_user(8, UserOverride(nvlink=450e9, nvls=nvls)),))
    shares = "121 % of expected (ring), 100 % of the hard limit (450 GB/s)" if nvls is False else (
        "87 % of expected (NVLS), 64 % of the hard limit (700 GB/s)"
    )  # fmt: skip
    assert headline_of(450, job).partition(": ")[2] == shares
    assert all("hard limit (" in headline_of(rate, job) for rate in (449, 451))


def test_operations_with_one_ceiling_or_none():
    assert headline_of(4, operation="alltoall") == "4.00 of 7.75 GB/s: 52 % of expected (direct), 50 % of the hard limit (8.07 GB/s)"
    assert headline_of(4, operation="p2p") == "4.00 of 50.0 GB/s: 8.0 % of the hard limit"
    assert headline_of(None, operation="p2p") == "50.0 GB/s hard limit"
    assert headline_of(1, operation="barrier") == "1.00 GB/s, no ceiling: this operation moves no bytes"
    assert headline_of(42, replace(FOUR, ceiling_from_user=84e9)) == "42.0 of 84.0 GB/s: 50 % of the given ceiling"


@pytest.mark.parametrize(("nvlink", "gpus_of_node", "limited_by", "constants"), [
    (448, 8, "xGMI 7×64 GB/s", "RCCL's constants"),  # MI300X: 7 links of 64 GB/s, which RCCL takes for 48 GB/s each
    (64, 2, "xGMI 1×64 GB/s", "RCCL's constants"),
    (50, 2, "NVLink 50 GB/s", "NCCL's constants"),  # two NVLinks of a V100 or A100; MI250X has one xGMI link of 50 GB/s as well
    (150, 4, "NVLink 150 GB/s", "NCCL's constants"),
])  # fmt: skip
def test_typed_links_have_the_constants_of_their_library(nvlink, gpus_of_node, limited_by, constants):
    job = Job((node_from_user(gpus_of_node, UserOverride(nvlink=nvlink * 1e9)),))
    found = ceilings("allreduce", job)
    assert (found.expected.limited_by, found.expected.constants) == (limited_by, constants)
    assert any(f"{limited_by} (--nvlink)" in text and constants in text for text in lines("allreduce", None, found, job))


def test_a_ring_is_shown_beside_a_faster_algorithm():
    job = Job((node_from_user(8, UserOverride(nvlink=450e9)),))
    shown = lines("allreduce", 479e9, ceilings("allreduce", job), job)
    assert shown[0] == "479 of 517 GB/s: 93 % of expected (NVLS), 68 % of the hard limit (700 GB/s)"
    assert any(text.startswith("a ring reaches 371 GB/s") for text in shown)
    assert any(text.startswith("assumed: ") and "--nvls no" in text for text in shown)
    assert not any("ring reaches" in text for text in lines("allgather", 300e9, ceilings("allgather", job), job))


def test_amd_gpus_on_pcie_alone_have_the_constants_of_rccl():
    job = Job((node_of(wired(gpus(4, "gfx906"), {})),))
    assert ceilings("allreduce", job).expected.constants == "RCCL's constants"


@pytest.mark.parametrize(("text", "nics"), [
    ("4x100Gb", (4, 100e9)), ("8x400Gb/s", (8, 400e9)), ("2×200Gbps", (2, 200e9)), ("25gbit", (1, 25e9)), (" 1 x 2.5Gb ", (1, 2.5e9)),
    ("4x50GB/s", (4, 400e9)), ("1x100GB", (1, 800e9)), ("12.5 GB/s", (1, 100e9)),
])  # fmt: skip
def test_nics_as_typed(text, nics):
    assert parse_nic(text) == nics


@pytest.mark.parametrize("text", [
    "", "4x", "x100Gb", "0x100Gb", "4x0Gb", "-4x100Gb", "4x-100Gb", "4x1000000000000000000Gb", "4x100GB\x1b[31m", "9999x1Gb", "nan",
    "4x100", "4x100G", "4x100gb", "4x100gb/s", "4x100MB/s", "4x2000GB/s",
])  # fmt: skip
def test_nics_that_are_none(text):
    with pytest.raises(UsageError, match="4x100Gb/s") as refused:
        parse_nic(text)
    assert "\x1b" not in str(refused.value)


def test_pcie_as_typed():
    assert parse_pcie("gen4x16").bytes_per_s == pytest.approx(31.5e9, rel=1e-3)
    assert (parse_pcie("PCIe Gen5 x8").name, parse_pcie("gen5x8").source) == ("PCIe Gen5 x8", "--pcie")
    for text in ("", "gen7x16", "gen4x3", "16", "gen4"):
        with pytest.raises(UsageError, match="gen4x16"):
            parse_pcie(text)


def test_rates_as_typed():
    assert parse_gigabytes("--nvlink", " 300GB/s") == parse_gigabytes("--nvlink", "300") == 300e9


@pytest.mark.parametrize("text", ["-1", "0", "nan", "inf", "1e18", "fast", "300GB", "３"])
def test_rates_that_no_hardware_has(text):
    with pytest.raises(UsageError, match=r"--nvlink '.*' is not a valid rate"):
        parse_gigabytes("--nvlink", text)


def test_links_of_a_host_are_named_with_it():
    limits = (PcieLimit(generation=4, lanes=16, host="n7"), NicLimit(ports=((4, 100e9),), host="n7"))
    assert limited_by(limits) == "PCIe Gen4 x16 and NIC 4×100 Gb/s of n7"
