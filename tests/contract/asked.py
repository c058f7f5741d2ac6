"""What the contract tests measure: every operation, type, root, placing and odd sizes; a fixed sample of them, all under --long."""

from collbench.operations.dtypes import DTYPES, REDOPS
from tests.conftest import sample
from tests.helpers import FITTING

ODD = [1, 1003]  # bytes: less than an element of each part, and no multiple of 3 or 4 ranks' elements
LARGER = 300_001  # more than libraries send at once
NEIGHBOURS = ("neighbor_allgather", "neighbor_alltoall")
MOVING = ("allgather", "allgatherv", "alltoall", "alltoallv", "sendrecv", "hypercube", *NEIGHBOURS)
ONE_SIDED = ("put_latency", "put_bandwidth", "get_latency", "get_bandwidth", "accumulate")
WRONG_IN_MPICH = (("float16", "sum"), ("float16", "prod"))  # accumulated by 5.0.2 (3 + 4 is -0.00009, 3 · 4 is 0), as its rows show
UNEVEN = ("allgatherv", "gatherv", "scatterv", "reducescatterv")
ROOTED = ("gather", "scatter", "gatherv", "scatterv")
REDUCING = ("reduce", "reducescatter", "reducescatterv", "scan", "exscan")
PLACINGS = (None, True, False)


def all_reductions(backend, few):
    """All-reduce of types and reductions: a sample of the types, where ranks outnumber cores a sample of both."""
    if not few:
        dtypes = sample(list(DTYPES), 6 if backend == "simulated" else 3)
        whole = {"operations": ["allreduce"], "sizes": [1003], "dtypes": dtypes, "redops": list(REDOPS)}
        return [
            whole,
            {**whole, "in_place": True, "dtypes": ["float32", *sample([dtype for dtype in dtypes if dtype != "float32"], 1)]},
            {**whole, "in_place": False, "dtypes": ["float32"], "redops": ["sum", "max"]},
        ]
    return [{"operations": ["allreduce"], "sizes": [1003], "dtypes": [dtype], "redops": [redop]} for dtype, redop in sample(FITTING, 6)]


def first_operations(backend, n):
    few = n > 2 and backend != "simulated"
    types = ["float32"] if few else ["float32", "bfloat16", "int8"]
    rotating = {"operations": ["allreduce"], "sizes": [300_001], "dtypes": ["int8"], "mode": "pipelined", "buffers": "rotating"}
    return [
        *all_reductions(backend, few),
        {"operations": ["broadcast"], "sizes": [1, 1003], "dtypes": types if few else sample(list(DTYPES), 4), "roots": sorted({0, n - 1})},
        {"operations": ["broadcast", "p2p_latency"], "sizes": [64], "dtypes": ["float32"], "in_place": True},
        {"operations": ["broadcast"], "sizes": [64], "dtypes": ["float32"], "in_place": False},
        {"operations": ["p2p_latency", "p2p_bandwidth", "p2p_bidirectional"], "sizes": [1, 300_001], "dtypes": types, "window": 3},
        *([rotating] if n == 2 else []),
        {"operations": ["allreduce"], "sizes": [1, 300_001], "dtypes": ["float32", "int8"]},
    ]


def _turned(items, turn):
    """The same items from another one on: so the sample of each operation is another one."""
    turn %= len(items)
    return [*items[turn:], *items[:turn]]


def one_sided(k):
    """Puts, gets and accumulates, in windows of 3, on buffers that take turns, in place (which they are not), by types and reductions."""
    whole = {"operations": list(ONE_SIDED), "sizes": [1, 300_001], "dtypes": ["int8"], "window": 3}
    asked = [whole, {**whole, "sizes": [64], "dtypes": ["float32"], "in_place": True}]
    asked += [{**whole, "mode": mode, "buffers": "rotating"} for mode in sample(["batched", "pipelined"], 1)]
    asked += [{**whole, "operations": list(ONE_SIDED[:-1]), "dtypes": sample(list(DTYPES), k)}]
    pairs = sample([pair for pair in FITTING if pair not in WRONG_IN_MPICH], 4 * k)
    return asked + [{"operations": ["accumulate"], "sizes": [1003], "dtypes": [dtype], "redops": [redop]} for dtype, redop in pairs]


def other_operations(n, k):
    """The other collectives: types × roots × placings × odd sizes, `k` of each; and what reduces by every pair of type and reduction."""
    asked = [{"operations": ["barrier"], "sizes": [1], "dtypes": ["float32"]}]
    for turn, operation in enumerate((*MOVING, *ROOTED, *REDUCING)):
        dtypes, roots = sample(_turned(list(DTYPES), 5 * turn), k), sample(_turned(sorted({0, n - 1}), turn), 1)
        for in_place in sample(_turned(PLACINGS, turn), k):
            asked.append({"operations": [operation], "sizes": ODD, "dtypes": dtypes, "roots": roots, "in_place": in_place})
    for turn, operation in enumerate(REDUCING):
        for dtype, redop in sample(_turned(FITTING, 20 * turn), 2 * k):
            asked.append({"operations": [operation], "sizes": ODD[1:], "dtypes": [dtype], "redops": [redop], "roots": [n - 1]})
    asked.append({"operations": ["alltoallv"], "sizes": ODD, "dtypes": ["float32"], "skew": min(1.5, n)})
    matrix = [[(n * sender + receiver + 1) % 5 for receiver in range(n)] for sender in range(n)]  # nothing from some to some
    asked.append({"operations": ["alltoallv"], "sizes": ODD, "dtypes": ["float32"], "matrix": matrix})
    parts = [[0, 3, 1, 2][:n]] if n > 1 else [[1]]  # rank 0's part is empty
    for uneven in ({"skew": min(1.5, n)}, {"matrix": parts}, {"matrix": parts, "in_place": True}):
        asked.append({"operations": list(UNEVEN), "sizes": ODD, "dtypes": ["float32"], "roots": [n - 1], **uneven})
    asked += one_sided(k)
    if n == 4:
        halves = {"sizes": ODD[1:], "dtypes": ["float32"], "split": "MOD 2", "roots": [1]}
        asked.append({**halves, "operations": ["barrier", "allreduce", "broadcast", *MOVING, *ROOTED, *REDUCING]})
    return [*asked, {"operations": [*MOVING, *ROOTED, *REDUCING], "sizes": [LARGER], "dtypes": ["float32"], "roots": [n - 1]}]


def asked_for(backend, n):
    asked = [*first_operations(backend, n), *other_operations(n, 2 if n == 2 else 1)]
    if backend != "nccl":
        return asked
    return [{"buffers": "fixed", **part} for part in asked]  # its habit is 1,024 slots of so small buffers
