"""What the evaluation of runs finds: slow ranks, links and pairs, the effect of GPUDirect RDMA."""

from collections.abc import Callable

from msgspec.structs import replace

from collbench.analysis.ceilings import CeilingChange, LinkChange, ceiling_sentences
from collbench.analysis.gdr_check import Effect, sentences
from collbench.analysis.health import CheckVerdict, HiddenByNoise, Reach, ReachesExpected, SeriesCheck
from collbench.analysis.stragglers import Role, SlowLink, Straggler
from collbench.results.quality import QualityReason, RunQuality
from collbench.stats.launches import Ratio
from tests.helpers import SENTENCES, Call, check_sentences
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
WORDS: dict[str, Call] = {
    "check, lines of two backends": lambda: "\n".join(CheckVerdict((NOISE, ReachesExpected("mpi", (GOOD,)))).backend_lines()),
    "rank finishes last": RANK.sentence,
    "rank of two finishes last": lambda: replace(RANK, other="rank 1 (node05)").sentence(),
    "rank delays": lambda: replace(RANK, role=Role.DELAYS).sentence(),
    "rank waits for a link": lambda: replace(RANK, role=Role.WAITS, link=LINK).sentence(),
    "slow link": LINK.sentence,
    "link became slower": lambda: LinkChange("node2", "eth0", 1e9, 0.5e9).sentence(),
    "ceiling fell": lambda: ceiling_sentences([FALLEN])[0],
    "GPUDirect RDMA is faster": gpudirect(effect(MIB, 1.9, 2.1), effect(4 * MIB, 1.8, 2.0)),
    "GPUDirect RDMA is faster, one launch": gpudirect(effect(MIB, 1.9, 2.1, over_launches=False)),
    "GPUDirect RDMA is faster for some": gpudirect(effect(1024, 1.0, 1.01), effect(2048, 1.0, 1.5), effect(MIB, 1.9, 2.1), used=False),
    "GPUDirect RDMA is slower": gpudirect(effect(MIB, 0.5, 0.6)),
    "GPUDirect RDMA makes no difference": gpudirect(effect(MIB, 1.0, 1.01)),
    "GPUDirect RDMA is in use without a difference": gpudirect(effect(MIB, 1.0, 1.01), used=True),
    "GPUDirect RDMA is not in use": gpudirect(effect(MIB, 1.0, 1.01), used=False),
    "GPUDirect RDMA: wide intervals": gpudirect(effect(MIB, 0.9, 1.3)),
    "GPUDirect RDMA on both sides": gpudirect(effect(MIB, 1.9, 2.1), used=True, used_without=True),
    "GPUDirect RDMA: no case": gpudirect(),
}


def test_the_words_of_messages() -> None:
    check_sentences(SENTENCES / "analysis.txt", WORDS)
