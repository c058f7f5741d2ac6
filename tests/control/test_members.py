"""Members of a launch: their hosts, their cores, and the rank that relays their messages."""

import pytest

from collbench.control.builds import hosts_of
from collbench.control.members import Member, Members, above, addressed
from collbench.errors import UsageError
from collbench.launch.info import LaunchInfo


def crew(*cpus):
    """Ranks on hosts with the CPUs that each may use; this one is the last."""
    members = tuple(Member(rank, host, 0, 100 + rank, own) for rank, (host, own) in enumerate(cpus))
    found = Members(members[-1])
    found.members = members
    return found


@pytest.mark.parametrize(("ranks", "cores", "oversubscribed"), [
    ([("a", (0, 1)), ("a", (0, 1))], 2, None),
    ([("a", (0,)), ("a", (1,))], 2, None),
    ([("a", (0,)), ("a", (0,))], 1, "a"),
    ([("a", (0, 1)), ("a", (0, 1)), ("a", (0, 1))], 2, "a"),
    ([("b", (0,)), ("b", (0,)), ("a", (0, 1)), ("a", (0, 1))], 2, "b"),
])  # fmt: skip
def test_shared_cores_count_once(ranks, cores, oversubscribed):
    found = crew(*ranks)
    assert (found.cores_on("a"), found.oversubscribed) == (cores, oversubscribed)


def test_hosts_are_in_the_order_of_their_first_rank():
    found = crew(("b", (0,)), ("a", (0,)), ("b", (1,)))
    assert found.hosts == ("b", "a")
    assert [member.rank for member in found.on_host()] == [0, 2]
    assert [member.rank for member in found.on_host("a")] == [1]


def test_a_rank_is_relayed_by_the_first_rank_of_its_host():
    members = [Member(rank, host, 0, rank, ()) for rank, host in enumerate("aabb")]
    assert [above(member, members).rank for member in members] == [0, 0, 0, 2]


def of_host(rank, host, *routes):
    return Member(rank, host, 0, rank, (), routes=routes)


def test_all_hosts_use_one_family_and_rank_0_the_address_that_the_others_know():
    both = of_host(1, "b", ("10.0.0.2", "10.0.0.1"), ("2001:db8::2", "2001:db8::1"))
    old, new = of_host(2, "c", ("10.0.0.3", "10.0.0.1")), of_host(2, "c", ("2001:db8::3", "2001:db8::1"))
    assert [member.address for member in addressed([of_host(0, "a"), both, old])] == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
    assert [member.address for member in addressed([of_host(0, "a"), both, new])] == ["2001:db8::1", "2001:db8::2", "2001:db8::3"]
    assert [member.address for member in addressed([of_host(0, "a"), of_host(1, "a"), old])] == ["10.0.0.1", "10.0.0.1", "10.0.0.3"]
    assert [member.address for member in addressed([of_host(0, "a"), of_host(1, "a")])] == ["127.0.0.1"] * 2
    assert str(old) == "rank 2 (c, pid 2)"
    with pytest.raises(UsageError, match=r"rank 2 \(c, pid 2\) .* IPv4, and rank 1"):
        addressed([of_host(0, "a"), of_host(1, "b", ("10.0.0.2", "10.0.0.1")), new])


@pytest.mark.parametrize(
    ("ranks", "local_ranks", "hosts", "number"), [(8, 4, (), 2), (9, 4, (), 3), (1, 1, (), 1), (8, 4, ("a", "b", "c", "a"), 3)]
)
def test_a_launch_has_so_many_hosts(ranks, local_ranks, hosts, number):
    assert hosts_of(LaunchInfo("mpirun", 0, ranks, 0, local_ranks, "mpi", "token", hosts=hosts)) == number
