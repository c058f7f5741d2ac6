"""Interfaces that carry nothing of a run are not compared: containers and virtual machines come and go."""

from __future__ import annotations

from collbench.analysis.differences import Facts, Item, without_idle

LO = {Item.of("topology", "interfaces 0 name"): "lo"}
ETH0 = {Item.of("topology", "interfaces 0 name"): "eth0"}


def nic(name: str, virtual: str | None, machine: int = 0, **more: str) -> Facts:
    actual = {"name": name, **({"virtual": virtual} if virtual else {}), **more}
    return {Item.of("topology", f"machines {machine} nics {name} {what}"): text for what, text in actual.items()}


def test_what_comes_and_goes_is_left_out_and_hardware_stays() -> None:
    idle = {**nic("veth1a2b", "veth or the like"), **nic("docker0", "bridge"), **nic("tap0", "tap"), **nic("tun0", "tunnel or the like")}
    real = {**nic("mlx5_0", None), **nic("0000:00:03.0", "virtio"), **nic("bond0", "bond"), **nic("rxe0", "tap", rdma="True")}
    assert without_idle({**LO, **idle, **real}) == {**LO, **real}


def test_one_that_ranks_or_settings_use_stays_with_its_rate() -> None:
    eth0 = {**ETH0, **nic("eth0", "veth or the like", shaped_bits_per_s="450000000.0")}
    assert without_idle({**eth0, **nic("veth9", "veth or the like")}) == eth0
    setting = {Item.of("environment", "UCX_NET_DEVICES"): "mlx5_0:1,br0"}
    assert without_idle({**eth0, **setting, **nic("br0", "bridge")}) == {**eth0, **setting, **nic("br0", "bridge")}


def test_where_nothing_shows_what_is_used_all_stay() -> None:
    assert without_idle(nic("veth1", "veth or the like")) == nic("veth1", "veth or the like")


def test_machines_that_differed_in_nothing_else_are_one() -> None:
    three = {**nic("mlx5_0", None), **nic("mlx5_0", None, 1), **nic("veth1", "veth or the like", 1), **nic("mlx5_1", None, 2)}
    assert without_idle({**LO, **three}) == {**LO, **nic("mlx5_0", None), **nic("mlx5_1", None, 1)}
