"""Members of a launch, their hosts and labels, and the errors of ranks that do not meet."""

import ast
from pathlib import Path

import pytest

import collbench
from collbench.control.addresses import routes_to
from collbench.control.builds import hosts_of
from collbench.control.members import Member, Members, above, addressed
from collbench.control.server import unreadable
from collbench.control.tree import ranks_apart
from collbench.control.wire import Malformed, parsed
from collbench.launch.info import LaunchInfo
from tests.helpers import said


def crew(*cpus):
    """Ranks on hosts with the CPUs that each may use; this one is the last."""
    members = tuple(Member(rank, host, 0, 100 + rank, own) for rank, (host, own) in enumerate(cpus))
    found = Members(members[-1])
    found.members = members
    return found


@pytest.mark.parametrize(("ranks", "cores", "oversubscribed"), [
    ([("a", (0, 1)), ("a", (0, 1))], 2, None), ([("a", (0,)), ("a", (1,))], 2, None), ([("a", (0,)), ("a", (0,))], 1, "a"),
    ([("a", (0, 1)), ("a", (0, 1)), ("a", (0, 1))], 2, "a"),
    ([("b", (0,)), ("b", (0,)), ("a", (0, 1)), ("a", (0, 1))], 2, "b"),
])  # fmt: skip
def test_shared_cores_count_once(ranks, cores, oversubscribed):
    found = crew(*ranks)
    assert (found.cores_on("a"), found.oversubscribed) == (cores, oversubscribed)


@pytest.mark.parametrize(("limits", "cores", "oversubscribed"), [
    ([(7, 2.0), (7, 2.0), (7, 2.0)], 2, "a"), ([(7, 3.5), (7, 3.5), (7, 3.5)], 3, None), ([(7, 0.5)], 1, None),
    ([(7, 1.0), (8, 2.0), (8, 2.0)], 3, None),  # containers of one host, each with its own limit
    ([(7, 1.0), None, (7, 1.0)], 8, None), ([(7, 99.0)] * 3, 8, None),
])  # fmt: skip
def test_a_limit_of_cpu_time_is_a_limit_of_cores(limits, cores, oversubscribed):
    members = tuple(Member(rank, "a", rank, rank, tuple(range(8)), cpu_limit=limit) for rank, limit in enumerate(limits))
    launch = Members(members[0])
    launch.members = members
    assert (launch.cores_on("a"), launch.oversubscribed) == (cores, oversubscribed)


def test_hosts_are_in_the_order_of_their_first_rank_which_relays_the_others():
    found = crew(("b", (0,)), ("a", (0,)), ("b", (1,)))
    assert found.hosts == ("b", "a")
    assert [member.rank for member in found.on_host()] == [0, 2]
    assert [member.rank for member in found.on_host("a")] == [1]
    members = [of_host(rank, host) for rank, host in enumerate("aabb")]
    assert [above(member, members).rank for member in members] == [0, 0, 0, 2]


def of_host(rank, host, *routes):
    return Member(rank, host, 0, rank, (), routes=routes)


FIRST, SECOND = of_host(0, "a"), of_host(1, "b", ("10.0.0.2", "10.0.0.1"), ("2001:db8::2", "2001:db8::1"))
OLD, NEW = of_host(2, "c", ("10.0.0.3", "10.0.0.1")), of_host(2, "c", ("2001:db8::3", "2001:db8::1"))


@pytest.mark.parametrize(("members", "addresses"), [
    ([FIRST, SECOND, OLD], ["10.0.0.1", "10.0.0.2", "10.0.0.3"]),
    ([FIRST, SECOND, NEW], ["2001:db8::1", "2001:db8::2", "2001:db8::3"]),
    ([FIRST, of_host(1, "a"), OLD], ["10.0.0.1", "10.0.0.1", "10.0.0.3"]),
    ([FIRST, of_host(1, "a")], ["127.0.0.1"] * 2),
])  # fmt: skip
def test_all_hosts_use_one_family_and_rank_0_the_address_that_the_others_know(members, addresses):
    assert [member.address for member in addressed(members)] == addresses


@pytest.mark.parametrize(
    ("ranks", "local_ranks", "hosts", "number"), [(8, 4, (), 2), (9, 4, (), 3), (1, 1, (), 1), (8, 4, ("a", "b", "c", "a"), 3)]
)
def test_a_launch_has_so_many_hosts(ranks, local_ranks, hosts, number):
    assert hosts_of(LaunchInfo("mpirun", 0, ranks, 0, local_ranks, "mpi", "token", hosts=hosts)) == number


PACKAGE = Path(collbench.__file__).parent
EXCHANGES = {"gather", "gather_array", "gather_into", "broadcast", "allgather", "first_error", "at_rank_0"}
PASSED_ON = {"what", "doing"}  # parameters and variables that hold a label

# Values in labels. Each is the same at all ranks: names from the command line, and cases of the sweep.
SAME_AT_ALL_RANKS = {
    "backend.name", "self.name", "name", "items[0][2].name", "stage.backend.name", "context.backend.name", "tool.name", "kind.name",
    "training.regime.name", "case.title()", "self.case.title()", "ready.case.title()", "self.ready.case.title()",
    "prepared.ready.case.title()", "step.ready.case.title()", "run.title", "self.title", "title", "what", "doing", "device", "len(ranks)",
    "'+'.join(row.mix)", "'on' if on else 'off'", "self.what", "verifying",
}  # fmt: skip


def labels(function):
    """Return the labels of a function's exchanges, and what the function assigns to the variables that hold them."""
    given, assigned = [], []
    for node in ast.walk(function):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            place = 2 if name == "at_rank_0" else 1
            if name in EXCHANGES and len(node.args) > place:
                given.append(node.args[place])
        elif isinstance(node, ast.Assign):
            targets = node.targets[0].elts if isinstance(node.targets[0], ast.Tuple) else node.targets
            values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
            pairs = zip(targets, values, strict=False)
            assigned += [value for target, value in pairs if isinstance(target, ast.Name) and target.id in PASSED_ON]
    return given + assigned if given else []


def test_no_label_of_an_exchange_has_a_value_of_one_host():
    found = {}
    for module in (file for folder in ("backends", "measuring", "cli", "control", "plugins") for file in (PACKAGE / folder).rglob("*.py")):
        functions = [node for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))) if isinstance(node, ast.FunctionDef)]
        for label in (label for function in functions for label in labels(function)):
            for value in (part.value for part in ast.walk(label) if isinstance(part, ast.FormattedValue)):
                found.setdefault(ast.unparse(value), set()).add(f"{module.relative_to(PACKAGE)}:{label.lineno}")
    assert len(found) > 5  # labels are found at all
    unknown = {value: places for value, places in found.items() if value not in SAME_AT_ALL_RANKS}
    assert not unknown, f"a value that differs between hosts ends every launch over them; add those that do not to the list: {unknown}"


def read(*frames):
    try:
        return str(parsed(frames))
    except Malformed as error:
        return unreadable(str(error))


WORDS = {
    "ranks apart": (lambda: ranks_apart("rank 1", ("opening gloo", 7), "rank 0", ("looking for GPUs", 7)),
        "rank 1 is at 'opening gloo' while rank 0 is at 'looking for GPUs': an error occurred on one of them alone, or they were "
        "started with other arguments"),
    "ranks apart in steps of one name": (lambda: ranks_apart("rank 1", ("gathering", 3), "rank 0", ("gathering", 4)),
        "rank 1 is at 'gathering' (step 3) while rank 0 is at 'gathering' (step 4): an error occurred on one of them alone, or they "
        "were started with other arguments"),
    "no family": (lambda: addressed([
        Member(0, "a", 0, 1, ()), Member(1, "b", 0, 1, (), routes=(("10.0.0.2", "10.0.0.1"),)),
        Member(2, "c", 0, 1, (), routes=(("fd00::3", "fd00::1"),)),
    ]),
        "the hosts have no address family in common: rank 2 (c, pid 1) cannot reach rank 0 over IPv4, and rank 1 (b, pid 1) cannot "
        "reach rank 0 over IPv6; give every host addresses of one family"),
    "unresolved": (lambda: routes_to("tcp://no.such.host.invalid"),
        "rank 0's host 'no.such.host.invalid' does not resolve to an address on this host: set MASTER_ADDR to its address"),
    "unreadable": (read,
        "a rank sent a message that cannot be read (not a valid message of 0 frames): install the same build on all nodes"),
    "unreadable version": (lambda: read(b"hello", b"0"),
        "a rank sent a message that cannot be read (not a message of this version): install the same build on all nodes"),
    "unreadable step": (lambda: read(b"m\x92\xa5grant\xa1x"),
        "a rank sent a message that cannot be read (Expected `int`, got `str` - at `$[1]`): install the same build on all nodes"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "text"), WORDS.values(), ids=WORDS)
def test_the_words_of_a_message(call, text):
    assert said(call) == text
