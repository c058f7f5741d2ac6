"""A rate beside its ceilings, as people read it; and what may be typed for hardware."""

from dataclasses import replace

import pytest

from collbench.errors import UsageError
from collbench.machine.peak.collective import ceilings, headline, lines
from collbench.machine.peak.node import Job, UserOverride, node_from_user, node_of, parse_gigabytes, parse_nic, parse_pcie
from tests.peak.made import gpus, wired

FOUR = Job((node_from_user(8, UserOverride((4, 100e9), 150e9)),) * 4)


def said(measured, job=FOUR, operation="allreduce"):
    return headline(measured and measured * 1e9, ceilings(operation, job))


def test_the_headline_has_both_percentages_for_any_rate():
    assert said(42) == "42.0 of 50.0 GB/s: 84 % of the ring reference, 65 % of the hard limit (64.6 GB/s)"
    assert said(60) == "60.0 of 50.0 GB/s: 120 % of the ring reference, 93 % of the hard limit (64.6 GB/s)"
    assert said(70) == "70.0 GB/s is above the hard limit of 64.6 GB/s: model inputs doubtful"
    assert said(None) == "50.0 GB/s ring reference, 64.6 GB/s hard limit"


@pytest.mark.parametrize("nvls", [True, False])
def test_nothing_flips_between_449_and_451(nvls):
    """8 GPUs with 450 GB/s each: with NVLink SHARP the hard limit is 700 GB/s, without it 450."""
    job = Job((node_from_user(8, UserOverride(nvlink=450e9, nvls=nvls)),))
    limit = 64 if nvls else 100
    bound = "700" if nvls else "450"
    shares = f"100 % of the ring reference, {limit} % of the hard limit ({bound} GB/s)"
    assert [said(rate, job) for rate in (449, 451)] == [f"449 of 450 GB/s: {shares}", f"451 of 450 GB/s: {shares}"]


def test_operations_with_one_ceiling_or_none():
    assert said(4, operation="alltoall") == "4.00 of 8.07 GB/s: 50 % of the hard limit"
    assert said(None, operation="alltoall") == "8.07 GB/s hard limit"
    assert said(1, operation="barrier") == "1.00 GB/s, no ceiling: this operation moves no bytes"
    assert said(42, replace(FOUR, ceiling_from_user=84e9)) == "42.0 of 84.0 GB/s: 50 % of the given ceiling"


def test_typed_xgmi_has_the_constants_of_rccl():
    """8 MI300X: 7 links of 64 GB/s, which RCCL takes for 48 GB/s each."""
    job = Job((node_from_user(8, UserOverride(nvlink=448e9)),))
    shown = lines("allreduce", None, ceilings("allreduce", job), job)
    assert any("xGMI 7×64 GB/s (--nvlink)" in text for text in shown)
    assert any("RCCL" in text and " 336 GB/s" in text for text in shown)
    nvidia = Job((node_from_user(8, UserOverride(nvlink=450e9)),))
    assert any("NCCL" in text and " 371 GB/s" in text for text in lines("allreduce", None, ceilings("allreduce", nvidia), nvidia))


def test_amd_gpus_on_pcie_alone_have_the_constants_of_rccl():
    job = Job((node_of(wired(gpus(4, "gfx906"), {})),))
    assert ceilings("allreduce", job).library == "RCCL"


@pytest.mark.parametrize(
    ("text", "nics"),
    [("4x100Gb", (4, 100e9)), ("8x400Gb/s", (8, 400e9)), ("2×200G", (2, 200e9)), ("25gbit", (1, 25e9)), (" 1 x 2.5Gb ", (1, 2.5e9))],
)
def test_nics_as_typed(text, nics):
    assert parse_nic(text) == nics


@pytest.mark.parametrize(
    "text",
    ["", "4x", "x100Gb", "0x100Gb", "4x0Gb", "-4x100Gb", "4x-100Gb", "4x1000000000000000000Gb", "4x100GB\x1b[31m", "9999x1Gb", "nan"],
)
def test_nics_that_are_none(text):
    with pytest.raises(UsageError, match="4x100Gb") as refused:
        parse_nic(text)
    assert "\x1b" not in str(refused.value)


def test_pcie_as_typed():
    assert parse_pcie("gen4x16").bytes_per_s == pytest.approx(31.5e9, rel=1e-3)
    assert parse_pcie("PCIe Gen5 x8").name == "PCIe Gen5 x8"
    for text in ("", "gen7x16", "gen4x3", "16", "gen4"):
        with pytest.raises(UsageError, match="gen4x16"):
            parse_pcie(text)


@pytest.mark.parametrize("text", ["-1", "0", "nan", "inf", "1e18", "fast", ""])
def test_rates_that_no_hardware_has(text):
    with pytest.raises(UsageError, match=r"--nvlink '.*' is not a valid rate"):
        parse_gigabytes("--nvlink", text)
