"""The kernel's text for a port's rate -> bits of data per second, or nothing rather than a wrong number."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.machine.readers.rdma import LANES, WIDTHS, falls_back, port_rate


@pytest.mark.parametrize(
    ("text", "bits"),
    [
        ("10 Gb/sec (4X SDR)", 8e9),
        ("2.5 Gb/sec (1X SDR)", 2e9),
        ("2.5 Gb/sec (1X)", 2e9),  # older kernels do not name SDR
        ("20 Gb/sec (4X DDR)", 16e9),
        ("40 Gb/sec (4X QDR)", 32e9),
        ("40 Gb/sec (4X FDR10)", 40e9),
        ("56 Gb/sec (4X FDR)", 54.5e9),
        ("100 Gb/sec (4X EDR)", 100e9),
        ("25 Gb/sec (1X EDR)", 25e9),
        ("200 Gb/sec (4X HDR)", 200e9),
        ("100 Gb/sec (2X HDR)", 100e9),
        ("400 Gb/sec (4X NDR)", 400e9),
        ("200 Gb/sec (2X NDR)", 200e9),
        ("800 Gb/sec (4X XDR)", 800e9),
        ("120 Gb/sec (12X QDR)", 96e9),
        (" 400 Gb/sec (4X NDR)\n", 400e9),
    ],
)
def test_data_rate_after_line_coding(text, bits):
    assert port_rate(text) == bits


@pytest.mark.parametrize(
    ("text", "bits"),
    [("10 Gb/sec (1X QDR)", 10e9), ("40 Gb/sec (4X QDR)", 40e9), ("56 Gb/sec (4X FDR)", 56e9), ("25 Gb/sec (1X EDR)", 25e9)],
)
def test_ethernet_borrows_the_names_and_not_the_coding(text, bits):
    assert port_rate(text, "ethernet") == bits


@pytest.mark.parametrize(
    "text",
    [
        "",
        "400",
        "Gb/sec (4X NDR)",
        "-400 Gb/sec (4X NDR)",
        "1000000000000000000 Gb/sec (4X NDR)",
        "400 Gb/sec (4X HDR)",  # contradicts itself
        "0 Gb/sec (0X NDR)",
        "300 Gb/sec (3X NDR)",
        "1600 Gb/sec (4X GDR)",  # not in the kernel yet
        "400 Gb/sec (4X NDR) and more",
        "٤٠٠ Gb/sec (4X NDR)",
        "nan Gb/sec (4X NDR)",
        "400 Gb/sec\x00(4X NDR)",
    ],
)
def test_anything_else_is_unknown(text):
    assert port_rate(text) is None


@pytest.mark.parametrize(
    ("text", "whether"), [("10 Gb/sec (4X SDR)", True), ("10 Gb/sec (4X)", True), ("40 Gb/sec (4X QDR)", False), ("", False)]
)
def test_sdr_may_be_what_an_old_kernel_prints_for_a_speed_it_does_not_know(text, whether):
    assert falls_back(text) is whether


@settings(max_examples=200)
@given(st.text(max_size=60) | st.from_regex(r"\d{1,4}(\.5)? Gb/sec \(\d{1,2}X ([A-Z]DR|FDR10)\)", fullmatch=True))
def test_no_text_gives_a_rate_that_no_port_has(text):
    assert port_rate(text) in {None, *(lane.data * width for lane in LANES.values() for width in WIDTHS)}
