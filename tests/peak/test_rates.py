"""The table of rates: every row has its source, the figures are those of the data sheets, and other keys are refused."""

import pytest

from collbench.errors import UsageError
from collbench.machine.peak.published import PublishedFigures
from collbench.machine.peak.rates import (
    FILE,
    Rates,
    gpu_model,
    links_of_rate,
    net_of_printed,
    nvlink,
    nvlink_of_rate,
    parse,
    pcie,
    rates,
    xgmi,
)

TABLES = ("nvlink", "gpu", "xgmi", "pcie")
ROWS = [("algorithms", rates().algorithms), *((name, row) for name in TABLES for row in getattr(rates(), name))]
TEXT = FILE.read_text(encoding="utf-8")
FIGURE = "[[published]]\nmachine = 'x'\noperation = 'reduce'\ngpus_per_node = 8\nsource = 'https://x'\nbusbw_gb_per_s = "


@pytest.mark.parametrize(("section", "row"), ROWS, ids=lambda value: value if isinstance(value, str) else "")
def test_every_row_has_a_source(section, row):
    assert row.source.startswith("https://")
    for other in ("nccl_source", "rccl_source", "nic_source", "nvls_source"):
        assert (getattr(row, other, None) or "https://").startswith("https://")


@pytest.mark.parametrize(("gb", "reduces", "architecture", "links"), [
    (450, False, "sm_90", 18), (900, False, "sm_100", 18), (300, False, "sm_80", 12), (150, False, "sm_70", 6), (80, False, "sm_60", 4),
    (200, False, "sm_80", 8), (200, True, "sm_90", 8), (50, False, "sm_70", 2), (425, False, "sm_90", 17), (440, False, "sm_90", None),
    (1800, False, "sm_100", None), (448, False, "sm_90", None),
])  # fmt: skip
def test_the_generation_of_a_rate_that_is_typed(gb, reduces, architecture, links):
    row = nvlink_of_rate(gb, reduces)
    assert architecture in row.architectures
    assert links_of_rate(row, gb) == links


@pytest.mark.parametrize(("model", "links", "per_gpu", "nccl"), [
    ("Tesla P100-SXM2-16GB", 4, 80, 72), ("Tesla V100-SXM2-16GB", 6, 150, 120), ("NVIDIA A100-SXM4-80GB", 12, 300, 240),
    ("NVIDIA A800-SXM4-80GB", 8, 200, 160), ("NVIDIA H100 80GB HBM3", 18, 450, 370.8), ("NVIDIA H100 PCIe", 12, 300, 247.2),
    ("NVIDIA H200", 18, 450, 370.8), ("NVIDIA B200", 18, 900, 721.8),
])  # fmt: skip
def test_nvlink_of_a_gpu(model, links, per_gpu, nccl):
    row = nvlink(None, model, links)
    assert gpu_model(model).links == links
    assert row.gb_per_s * links == pytest.approx(per_gpu)
    assert row.nccl_gb_per_s * links == pytest.approx(nccl)


@pytest.mark.parametrize(("count", "gb"), [(12, 25.0), (8, 25.0), (6, 25.0), (18, None), (4, 20.0), (5, None)])
def test_a_number_of_links_shows_the_rate_only_where_one_rate_has_it(count, gb):
    """18 links are an H100's of 25 GB/s or a B200's of 50."""
    row = nvlink(None, None, count)
    assert (row.gb_per_s if row else None) == gb


@pytest.mark.parametrize(("printed", "net"), [(26.562, 25), (25.781, 25), (53.125, 50), (25, 25), (50, 50), (14.062, 14.062)])
def test_raw_rates_that_tools_print_are_made_net(printed, net):
    assert net_of_printed(printed * 1e9) == net * 1e9


@pytest.mark.parametrize(("speed", "x1", "x16", "nccl"), [
    (2.5, 0.25, 4, 3), (5.0, 0.5, 8, 6), (8.0, 0.985, 15.754, 12), (16.0, 1.969, 31.508, 24), (32.0, 3.938, 63.015, 48),
    (64.0, 7.5625, 121, 96),
])  # fmt: skip
def test_pcie_after_line_coding(speed, x1, x16, nccl):
    row = pcie(speed)
    assert row.bytes_per_s(1) / 1e9 == pytest.approx(x1, rel=1e-3)
    assert row.bytes_per_s(16) / 1e9 == pytest.approx(x16, rel=1e-3)
    assert row.nccl_bytes_per_s(16) == nccl * 1e9


def test_unknown_amd_gpus_have_no_known_links():
    assert xgmi("gfx1030") is None and xgmi(None) is None


@pytest.mark.parametrize(("kind", "text", "what"), [
    (Rates, "", "`schema`"), (Rates, "schema = 2", "schema"), (Rates, "schema = [", "end of document"),
    (Rates, f"{TEXT}\n[[torus]]\nsource = ''", "`torus`"),
    (Rates, f"{TEXT}\n[[pcie]]\ngt_per_s = 1.0\ncolour = 'red'", r"`colour` - at `\$.pcie\["),
    (Rates, f"{TEXT}\n[[pcie]]\ngeneration = 7\nverified = true", "missing required field"), (PublishedFigures, "schema = 2", "schema"),
    (PublishedFigures, "schema = 1", "`published`"), (PublishedFigures, "schema = 1\n[[", "line 2|end of document"),
    (PublishedFigures, "schema = 1\n[[published]]\nmachine = 'x'", r"at `\$.published\[0\]`"),
    (PublishedFigures, f"schema = 1\n{FIGURE}[1.0]", "length 2"),
])  # fmt: skip
def test_another_table_is_refused_in_one_sentence(kind, text, what):
    with pytest.raises(UsageError, match=what) as refused:
        parse(text, kind)
    assert "\n" not in str(refused.value)


def test_a_table_of_published_figures_is_read():
    (row,) = parse(f"schema = 1\n{FIGURE}[1, 2.5]", PublishedFigures).published
    assert row.busbw_gb_per_s == (1.0, 2.5) and row.nodes == 1
