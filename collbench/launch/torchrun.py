"""torchrun, and every launcher that speaks its language: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT (Kubernetes, by hand)."""

from __future__ import annotations

from collections.abc import Mapping

from collbench.launch.info import LaunchInfo
from collbench.launch.variables import local_place, master, meeting_at, number, place

_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def detect(env: Mapping[str, str]) -> LaunchInfo | None:
    """This rank as torchrun or a hand-written environment tells it, or None. Raises UsageError where a variable is broken."""
    if not all(env.get(name) for name in _NEEDED):
        return None
    rank, ranks = place(env, "RANK", "WORLD_SIZE")
    local_rank, local_ranks = local_place(env, "LOCAL_RANK", "LOCAL_WORLD_SIZE", ranks)
    host, port = master(env)
    elastic = "TORCHELASTIC_RUN_ID" in env
    return LaunchInfo(
        launcher="torchrun",
        rank=rank,
        ranks=ranks,
        local_rank=local_rank,
        local_ranks=local_ranks,
        meeting=meeting_at(host),
        # the restart count is left out: it differs between ranks
        token=":".join((host, str(port), env.get("TORCHELASTIC_RUN_ID", ""), str(ranks))),
        port=None if elastic else port,  # torchrun's own store listens there
        node=env.get("GROUP_RANK", ""),
        facts={"variables": "torchrun" if elastic else "RANK and WORLD_SIZE", **_restarted(env)},
    )


def is_elastic(info: LaunchInfo) -> bool:
    """Whether torchrun itself has started this launch: only then all ranks are asked whether it did so before."""
    return info.facts.get("variables") == "torchrun"


def refusal(restarts: str) -> str:
    """Why ranks that torchrun has started again measure nothing: samples of two starts are not those of one run."""
    return (
        f"torchrun has started the ranks again (restart {restarts}) after an earlier start failed: why it did is above and in its run "
        "folder, which keeps what it measured; go on with --resume RUN, and give torchrun --max-restarts 0"
    )


def _restarted(env: Mapping[str, str]) -> dict[str, str]:
    """How often this rank's agent has started it again; agents of other nodes may count differently."""
    restarts = number(env, "TORCHELASTIC_RESTART_COUNT", 0)
    return {"restarts": str(restarts)} if restarts else {}
