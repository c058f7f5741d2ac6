"""What the evaluation of runs finds: slow ranks, links and pairs, the effect of GPUDirect RDMA."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from collbench.analysis.ceilings import CeilingChange, LinkChange, ceiling_sentences
from collbench.analysis.gdr_check import Effect, sentences
from collbench.analysis.health import CheckVerdict, HiddenByNoise, Reach, ReachesExpected, SeriesCheck
from collbench.analysis.stragglers import Role, SlowLink, Straggler
from collbench.results.quality import QualityReason, RunQuality
from collbench.stats.launches import Ratio
from tests.helpers import Call, said
from tests.results.rows import make_row

RANK = Straggler(3, "node07", 0.62, 0.25, 9, 12, 0.14)
FALLEN = CeilingChange("allreduce", "mpi", "ring", 12e7, 6e7, "NIC eth0 1 Gb/s", "NIC eth0 0.5 Gb/s")
LINK = SlowLink("node05", "eth0", 0.8e9, 1e9)


def effect(size_bytes: int, low: float, high: float, over_launches: bool = True) -> Effect:
    return Effect(make_row(size_bytes), Ratio((low + high) / 2, low, high, 4), over_launches)


def gpudirect(*found: Effect, used: bool | None = None, used_without: bool | None = None) -> Callable[[], str]:
    return lambda: "\n".join(sentences(found, used, used_without))


MIB = 1 << 20
GOOD = SeriesCheck("allreduce", "mpi", Reach.REACHED, 64 * MIB, 5.07e9, 8.02e9, 63.2, 62.1, 64.0, 0.2, "memory copy", 13.2e-3, 1)
NOISE = HiddenByNoise("gloo", ("allreduce", "p2p_bandwidth"), RunQuality(1, 8, 3, (QualityReason("idle", 11),)))
WORDS: dict[str, tuple[Call, str]] = {
    "check, lines of two backends": (lambda: "\n".join(CheckVerdict((NOISE, ReachesExpected("mpi", (GOOD,)))).backend_lines()),
        "gloo INCONCLUSIVE: 11 of 12 rows over gloo are noisy or unreliable: other work or a changed machine state disturbed the "
        "measurement\n"
        "mpi OK: allreduce reaches 63 % of the expected bandwidth over mpi, data verified"),
    "rank finishes last": (RANK.sentence,
        "rank 3 (node07) finishes last in 62 % of the samples (25 % if the ranks were alike) in 9 of 12 cases, 14 % later than the "
        "others: it is slow, or it waits for a rank or a link that it receives from (`collbench hunt` finds out)"),
    "rank of two finishes last": (lambda: replace(RANK, other="rank 1 (node05)").sentence(),
        "rank 3 (node07) finishes last in 62 % of the samples (25 % if the ranks were alike) in 9 of 12 cases, 14 % later than rank 1 "
        "(node05): either rank, or the link between them, may be slow, since each waits for the other"),
    "rank delays": (lambda: replace(RANK, role=Role.DELAYS).sentence(),
        "rank 3 (node07), or a path into it, is slow: it finishes last in 62 % of the samples (25 % if the ranks were alike) in 9 of 12 "
        "cases, 14 % later than the others: also in all-to-all, where it receives from every rank directly and the others end at the "
        "same time"),
    "rank waits for a link": (lambda: replace(RANK, role=Role.WAITS, link=LINK).sentence(),
        "rank 3 (node07) finishes last in 62 % of the samples (25 % if the ranks were alike) in 9 of 12 cases, 14 % later than the "
        "others: eth0 of node05 explains it"),
    "slow link": (LINK.sentence, "eth0 of node05 is slower than the links of the other hosts: 0.8 Gb/s, others 1 Gb/s"),
    "link became slower": (lambda: LinkChange("node2", "eth0", 1e9, 0.5e9).sentence(), "eth0 of node2: 1 → 0.5 Gb/s"),
    "ceiling fell": (lambda: ceiling_sentences([FALLEN])[0],
        "expected bandwidth of allreduce on mpi: 0.120 → 0.0600 GB/s (-50 %), limited by NIC eth0 0.5 Gb/s"),
    "GPUDirect RDMA is faster": (gpudirect(effect(MIB, 1.9, 2.1), effect(4 * MIB, 1.8, 2.0)),
        "GPUDirect RDMA carries the bytes: 1 MiB-4 MiB (2 sizes) are 1.95x (1.80 to 2.10) as fast as without it"),
    "GPUDirect RDMA is faster, one launch": (gpudirect(effect(MIB, 1.9, 2.1, over_launches=False)),
        "GPUDirect RDMA carries the bytes: 1 MiB is 2.00x (1.90 to 2.10) as fast as without it\n"
        "intervals of one launch only; use --launches 3"),
    "GPUDirect RDMA is faster for some": (gpudirect(effect(1024, 1.0, 1.01), effect(2048, 1.0, 1.5), effect(MIB, 1.9, 2.1), used=False),
        "GPUDirect RDMA carries the bytes: 1 MiB is 2.00x (1.90 to 2.10) as fast as without it\n"
        "but NCCL's log shows no connection that uses it: the difference has another cause\n"
        "1 KiB: no difference beyond 5 %\n"
        "2 KiB: the intervals are too wide"),
    "GPUDirect RDMA is slower": (gpudirect(effect(MIB, 0.5, 0.6)),
        "GPUDirect RDMA slows them down: 1 MiB is 0.55x (0.50 to 0.60) as fast as without it"),
    "GPUDirect RDMA makes no difference": (gpudirect(effect(MIB, 1.0, 1.01)),
        "GPUDirect RDMA makes no difference beyond 5 %: it is not in use, or does not matter"),
    "GPUDirect RDMA is in use without a difference": (gpudirect(effect(MIB, 1.0, 1.01), used=True),
        "GPUDirect RDMA makes no difference beyond 5 %: it is in use, but does not matter here"),
    "GPUDirect RDMA is not in use": (gpudirect(effect(MIB, 1.0, 1.01), used=False),
        "GPUDirect RDMA makes no difference beyond 5 %: it is not in use (NCCL's log)"),
    "GPUDirect RDMA: wide intervals": (gpudirect(effect(MIB, 0.9, 1.3)),
        "GPUDirect RDMA: inconclusive, the intervals are too wide: use more --launches or a longer --max-time"),
    "GPUDirect RDMA on both sides": (gpudirect(effect(MIB, 1.9, 2.1), used=True, used_without=True),
        "GPUDirect RDMA: inconclusive, NCCL used it on both sides (NCCL_NET_GDR_LEVEL=LOC had no effect)"),
    "GPUDirect RDMA: no case": (gpudirect(), "GPUDirect RDMA: inconclusive, no case was measured in all launches with and without it"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "text"), WORDS.values(), ids=WORDS)
def test_the_words_of_a_message(call: Call, text: str) -> None:
    assert said(call) == text
