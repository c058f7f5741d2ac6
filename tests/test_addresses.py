"""Addresses of hosts: which of them other hosts can use."""

import socket

import pytest

from collbench import addresses
from collbench.addresses import (
    Family,
    HubAddresses,
    Scope,
    bracketed,
    family_of,
    hub_addresses,
    is_link_local,
    is_loopback,
    is_numeric,
    resolve,
)


@pytest.mark.parametrize(
    ("address", "loopback", "link_local"),
    [
        ("127.0.0.1", True, False),
        ("127.0.1.1", True, False),
        ("::1", True, False),
        ("10.0.0.1", False, False),
        ("12.7.0.1", False, False),
        ("169.254.3.4", False, True),
        ("fe80::1", False, True),
        ("2001:db8::1", False, False),
    ],
)
def test_kinds_of_addresses(address: str, loopback: bool, link_local: bool) -> None:
    assert (is_loopback(address), is_link_local(address)) == (loopback, link_local)


def test_families_and_brackets() -> None:
    assert [family_of(each) for each in ("10.0.0.1", "::1")] == [Family.IPV4, Family.IPV6]
    assert [bracketed(each) for each in ("10.0.0.1", "::1", "[::1]", "node1")] == ["10.0.0.1", "[::1]", "[::1]", "node1"]
    assert [is_numeric(each) for each in ("10.0.0.1", "fe80::1%eth0", "node1", "")] == [True, True, False, False]


def names(monkeypatch: pytest.MonkeyPatch, *found: str) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(0, 0, 0, "", (each, 0)) for each in found])


@pytest.mark.parametrize(
    ("found", "usable"),
    [
        (["2001:db8::1", "10.0.0.1"], ("10.0.0.1", "2001:db8::1")),
        (["fe80::1", "10.0.0.1"], ("10.0.0.1",)),
        (["169.254.3.4"], ("169.254.3.4",)),
        (["10.0.0.1", "10.0.0.1"], ("10.0.0.1",)),
        ([], ()),
    ],
)
def test_a_name_resolves_to_ipv4_first_and_to_link_local_addresses_last(
    monkeypatch: pytest.MonkeyPatch, found: list[str], usable: tuple[str, ...]
) -> None:
    names(monkeypatch, *found)
    assert resolve("node1") == usable


@pytest.mark.parametrize(
    ("host", "found", "own", "where"),
    [
        ("node1", ["10.0.0.1", "10.0.0.2"], {"10.0.0.1"}, (("10.0.0.1",), Scope.GIVEN)),
        ("node1", ["127.0.1.1"], {"127.0.1.1"}, ((), Scope.NAME_IS_LOOPBACK)),
        ("localhost", ["127.0.0.1", "::1"], {"127.0.0.1", "::1"}, (("127.0.0.1",), Scope.GIVEN)),
        ("127.0.0.1", ["127.0.0.1"], {"127.0.0.1"}, (("127.0.0.1",), Scope.GIVEN)),
        ("node9", ["10.0.0.9"], set(), ((), Scope.NOT_OWN)),
    ],
)
def test_where_rank_0_listens(
    monkeypatch: pytest.MonkeyPatch, host: str, found: list[str], own: set[str], where: tuple[tuple[str, ...], Scope]
) -> None:
    names(monkeypatch, *found)
    monkeypatch.setattr(addresses, "is_own", own.__contains__)
    hub = hub_addresses(host)
    assert (hub.listens, hub.scope) == where


def test_other_hosts_cannot_connect_to_loopback_alone() -> None:
    assert HubAddresses("localhost", ("127.0.0.1",), ("127.0.0.1",)).loopback_only
    assert not HubAddresses("node1", (), ("127.0.0.1", "10.0.0.1")).loopback_only
    assert not HubAddresses("node1", ("127.0.1.1",), ()).loopback_only
