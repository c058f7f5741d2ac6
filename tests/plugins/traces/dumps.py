"""Dumps of the Flight Recorder as PyTorch writes them, of calls that a test names."""

import json
import struct

SECOND = 1_000_000_000
_BEGAN = 1_795_000_000 * SECOND

Call = tuple[str, int] | tuple[str, int, str]  # operation, elements, and how far it was: "completed" by default


def entries(calls, group="0", what="default_pg", *, library="nccl", begin=1, times=()):
    """Return the entries of a rank's calls in one group; `begin`: number of the first, `times`: when each was called, in seconds."""
    found = []
    for number, call in enumerate(calls):
        operation, size, state = call if len(call) == 3 else (*call, "completed")
        gathered = [[2, size]] if "gather" in operation else [[size]]
        found.append(
            {
                "record_id": number, "pg_id": 0, "process_group": [group, what], "collective_seq_id": begin + number, "p2p_seq_id": 0,
                "op_id": begin + number, "profiling_name": f"{library}:{operation}", "time_created_ns": _created(times, number),
                "input_sizes": [[size]], "input_dtypes": ["Float"], "output_sizes": gathered, "output_dtypes": ["Float"],
                "state": "scheduled" if state in ("waiting", "retired") else state, "retired": state in ("completed", "retired"),
                "time_discovered_started_ns": None, "time_discovered_completed_ns": None, "timeout_ms": 600000, "is_p2p": False,
            }
        )  # fmt: skip
    return found


def _created(times, number):
    return _BEGAN + int(SECOND * (times[number] if times else number / 100))


def document(entries, groups=None):
    config = {name: {"name": name, "desc": "", "ranks": str(list(ranks))} for name, ranks in (groups or {}).items()}
    return {"version": "2.10", "pg_config": config, "pg_status": {}, "entries": list(entries)}


def write(folder, by_rank, groups=None):
    """Write the dump of each rank as JSON; return the files."""
    paths = [folder / f"dump_rank_{rank}.json" for rank in by_rank]
    for path, calls in zip(paths, by_rank.values(), strict=True):
        path.write_text(json.dumps(document(calls, groups)), encoding="utf-8")
    return paths


def pickled(value):
    """Return the value as PyTorch's pickler writes it: protocol 2, in which only strings are stored for a second use."""
    memo = {}

    def put(value):
        if value is None or isinstance(value, bool):
            return b"N" if value is None else b"\x88" if value else b"\x89"
        if isinstance(value, int):
            short = b"K%c" % value if 0 <= value < 256 else b"J" + struct.pack("<i", value) if abs(value) < 1 << 31 else b""
            return short or b"\x8a\x08" + struct.pack("<q", value)
        if isinstance(value, str):
            known = value in memo
            number = memo.setdefault(value, len(memo))
            at = bytes([number]) if number < 256 else struct.pack("<I", number)
            if known:
                return (b"h" if number < 256 else b"j") + at
            text = value.encode()
            return b"X" + struct.pack("<I", len(text)) + text + (b"q" if number < 256 else b"r") + at
        if isinstance(value, dict):
            return b"}(" + b"".join(put(key) + put(each) for key, each in value.items()) + b"u"
        parts = b"".join(map(put, value))
        return b"](" + parts + b"e" if isinstance(value, list) else parts + b"\x86"

    return b"\x80\x02" + put(value) + b"."
