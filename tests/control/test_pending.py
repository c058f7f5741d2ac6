"""Connections that have not proved that they belong to the launch: limits in all and for each source."""

import pytest

from collbench.control import security
from collbench.control.security import PendingConnections, is_remote


@pytest.fixture
def calls(monkeypatch):
    """What the kernel was asked to do, in order."""
    found = []
    monkeypatch.setattr(security, "drop_all", lambda descriptor: found.append("all"))
    monkeypatch.setattr(security, "drop_from", lambda descriptor, sources: found.append(sorted(sources) or "none"))
    return found


def pending(most, most_of_source):
    found = PendingConnections(most, most_of_source)
    found.listeners.add(99)
    return found


def test_a_source_above_its_limit_is_held_back_until_half_of_it_is_free(calls):
    found = pending(100, 4)
    for descriptor in range(4):
        found.add(descriptor, "10.0.0.9")
    assert calls == []
    found.add(4, "10.0.0.9")
    assert calls == [["10.0.0.9"]] and list(found.held_back) == ["10.0.0.9"]
    found.remove(0)
    found.remove(1)
    assert calls == [["10.0.0.9"]]
    found.remove(2)
    assert calls == [["10.0.0.9"], "none"]


def test_all_sources_are_held_back_above_the_whole_limit(calls):
    found = pending(4, 100)
    for descriptor in range(4):
        found.add(descriptor, f"10.0.0.{descriptor}")
    assert calls == []
    found.add(4, "10.0.0.4")
    assert calls == ["all"] and not found.held_back
    for descriptor in range(3):
        found.remove(descriptor)
    assert calls == ["all", "none"]


def test_ranks_of_this_host_are_not_counted_by_source(calls):
    found = pending(100, 1)
    for descriptor in range(3):
        found.add(descriptor, None)
    assert calls == [] and len(found) == 3 and 1 in found and found.remove(1) is None


@pytest.mark.parametrize(("address", "remote"), [("10.0.0.1", True), ("fe80::1%eth0", True), (None, False), ("", False), ("socket", False)])
def test_an_ip_address_is_remote(address, remote):
    assert is_remote(address) is remote
