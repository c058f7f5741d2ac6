"""Command lines of the OSU benchmarks and of IMB-MPI1: their options mean here what they mean there, or are rejected with the nearest one.

OSU 7.4: `osu_allreduce -h`, and process_options in c/util/osu_util.c. IMB 2021.8: "Command-line Control" of its user guide.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import msgspec

from collbench.errors import UsageError

_OF_IMB = ("imb-mpi1", "imb-nbc")


class PeerOption(msgspec.Struct, frozen=True):
    """An option of OSU or IMB.

    settings  a value (of a switch: "") -> collbench's words for it; None: it has none for this value
    reason    why a value is rejected, and what to use
    values    how many values it has: 0, 1, or "attached": one that may be missing, in the same word
    """

    settings: Callable[[str], Sequence[str] | None]
    reason: str
    values: int | str = 1


def arguments_of(program: str, typed: Sequence[str]) -> list[str]:
    """Return a command line of OSU or IMB with collbench's options; other words stay. Raises UsageError for what it does not have."""
    if program.lower() in _OF_IMB:
        return _of_imb(program, typed)
    words, buffers = _with_buffers(typed)
    found = _translated(program, words, _osu_options(program), _OSU_LONG)
    if "--version" in found:
        return ["--version"]
    return [program, *buffers, *_joined_columns(found)]


def _joined_columns(words: Sequence[str]) -> list[str]:
    """Return the words with one --columns for those of -f and -z."""
    added = [columns.removeprefix("+") for option, columns in pairwise(words) if option == "--columns" and columns.startswith("+")]
    if len(added) < 2:
        return list(words)
    names = dict.fromkeys(name for columns in added for name in columns.split(","))
    found = list(words)
    for columns in added:
        place = found.index(f"+{columns}")
        del found[place - 1 : place + 1]
    return [*found, "--columns", f"+{','.join(names)}"]


def _translated(program: str, typed: Sequence[str], options: Mapping[str, PeerOption], long: Mapping[str, str]) -> list[str]:
    """Return the words with each of these options replaced."""
    words = list(typed)
    found: list[str] = []
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
        name = long.get(name, name)
        if name not in options and not word.startswith("--") and word[:2] in options and word != "-np":
            name, value = word[:2], word[2:]
            equals = "attached"
        if name not in options:
            found.append(word)
            continue
        option = options[name]
        if option.values == 0 and value and equals == "attached":  # a cluster of switches, such as -fc
            words.insert(0, f"-{value}")
            value = ""
        elif option.values == 1 and not equals:
            if not words:
                raise UsageError(f"{name}: its value is missing (see `{program} -h`)")
            value = words.pop(0)
        settings = option.settings(value)
        if settings is None:
            raise UsageError(f"{program} {f'{name} {value}'.strip()}: {option.reason}")
        found += settings
    return found


def _only(*accepted: str) -> Callable[[str], Sequence[str] | None]:
    """Accept these values: they are what collbench does."""
    return lambda value: [] if value.lower() in accepted else None


def _choice(**words: str) -> Callable[[str], Sequence[str] | None]:
    """Return the words for a value by its name, without case."""
    return lambda value: words[value.lower()].split() if value.lower() in words else None


def _number(option: str) -> Callable[[str], Sequence[str] | None]:
    return lambda value: [option, value] if value.isascii() and value.isdecimal() else None


# OSU

_POINT_TO_POINT = re.compile(r"osu_(?:latency|bw|bibw|mbw_mr|put|get|acc)")
_COLUMN_OF_PERCENTILE = {"0": "min", "50": "", "95": "p95", "99": "p99", "100": "max"}  # 50 is the time itself
_MEMORY = {"h": "cpu", "d": "cuda"}
_OSU_LONG = {
    "--full": "-f", "--message-size": "-m", "--window-size": "-W", "--num-test-calls": "-t", "--iterations": "-i", "--warmup": "-x",
    "--array-size": "-a", "--sync-option": "-s", "--win-options": "-w", "--mem-limit": "-M", "--accelerator": "-d", "--cuda-target": "-r",
    "--print-rate": "-R", "--num-pairs": "-p", "--vary-window": "-V", "--validation": "-c", "--buffer-num": "-b",
    "--validation-warmup": "-u", "--graph": "-G", "--papi": "-P", "--ddt": "-D", "--nhbr": "-N", "--type": "-T", "--session": "-I",
    "--in-place": "-l", "--root-rank": "-k", "--tail-lat": "-z", "--version": "-v", "--help": "-h",
}  # fmt: skip


def _osu_options(program: str) -> dict[str, PeerOption]:
    largest = "4M" if _POINT_TO_POINT.match(program.lower()) else "1M"  # MAX_MESSAGE_SIZE, MAX_MSG_SIZE_COLL
    return {
        "-m": PeerOption(lambda value: _osu_sizes(value, largest), "not valid sizes: use `-m MIN:MAX` in bytes from 1, e.g. -m 8:1024"),
        "-i": PeerOption(_number("-n"), "not a valid number of iterations: use e.g. `-i 1000`"),
        "-x": PeerOption(_number("-w"), "not a valid number of warm-up iterations: use e.g. `-x 100`"),
        "-f": PeerOption(lambda value: ["--columns", "+min,max,n"], "", 0),
        "-c": PeerOption(lambda value: ["--check", "1"], "", 0),
        "-z": PeerOption(_percentiles, "percentiles are 0, 50, 95, 99 and 100: use `-z50,95,99`", "attached"),
        "-W": PeerOption(_number("--window"), "not a valid window: use e.g. `-W 64`"),
        "-d": PeerOption(_choice(cuda="--device cuda"), "this memory is not supported: use `-d cuda` (AMD GPUs: `--backend rccl`)"),
        "-T": PeerOption(_choice(mpi_char="--dtype int8", mpi_int="--dtype int32", mpi_float="--dtype float32",
                                all="--dtype int8,int32,float32"), "not a type of OSU: use `-T mpi_float`, or `--dtype TYPES`"),
        "-l": PeerOption(lambda value: ["--in-place"], "", 0),
        "-k": PeerOption(_root, "not one root: use `-k fixed:0`, or `--root 0,1` for a row of each root"),
        "-b": PeerOption(_choice(single="--buffers fixed"), "use `--buffers rotating` (64 MiB of buffers in turn); sizes: `-m MIN:MAX`"),
        "-p": PeerOption(_number("--pairs"), "not a valid number of pairs: use e.g. `-p 2`"),
        "-R": PeerOption(_only("1"), "the message rate is always shown: remove the option"),
        "-V": PeerOption(_only(), "windows are not varied: use `-W N`, once for each window", 0),
        "-t": PeerOption(_only(), "their number is not chosen: use `--overlap`, which measures with test calls and without"),
        "-M": PeerOption(_only(), "memory is checked before the start: use `-m MIN:MAX` for smaller sizes"),
        "-u": PeerOption(_only(), "verification has calls of its own after the timing: remove the option"),
        "-a": PeerOption(_only(), "no kernel runs during the operation: use `--overlap`"),
        "-r": PeerOption(_only("cpu"), "no kernel runs during the operation: use `--overlap`"),
        "-s": PeerOption(_only("flush", "lock_all"), "one-sided calls use lock_all and flush: use `-s flush`"),
        "-w": PeerOption(_only("allocate"), "windows are allocated: use `-w allocate` (warm-up: `-x N`)"),
        "-I": PeerOption(_only(), "sessions are not used: `collbench init` measures how long they take", 0),
        "-G": PeerOption(_only(), "graphs are on the page of a run: use `collbench report RUN --html FILE`"),
        "-P": PeerOption(_only(), "PAPI is not supported: counters of the NICs are recorded by default (--evidence)"),
        "-D": PeerOption(_only("cont"), "derived types are not supported here: use `collbench kv --method mpi-type`"),
        "-N": PeerOption(_only(), "neighbors are the ranks before and after: use `collbench neighbor-alltoall` without the option"),
        "-v": PeerOption(lambda value: ["--version"], "", 0),
        "-h": PeerOption(lambda value: ["--help"], "", 0),
    }  # fmt: skip


def _osu_sizes(value: str, largest: str) -> Sequence[str] | None:
    """Return the sizes of "128", "2:128", "2:" or ":128", by powers of two; OSU's own smallest size is 1."""
    least, colon, most = value.partition(":")
    if not colon:
        least, most = "", value
    ends = [end for end in (least, most) if end]
    if not ends or not all(end.isascii() and end.isdecimal() and int(end) for end in ends):
        return None
    return ["-b", least or "1", "-e", most or largest, "-f", "2"]


def _percentiles(value: str) -> Sequence[str] | None:
    names = [_COLUMN_OF_PERCENTILE.get(percentile) for percentile in (value or "50,90,99").split(",")]
    if None in names:
        return None
    columns = [name for name in names if name]
    return ["--columns", f"+{','.join(columns)}"] if columns else []


def _root(value: str) -> Sequence[str] | None:
    root = value.lower().removeprefix("fixed:")
    return ["--root", root] if root.isascii() and root.isdecimal() else None


def _with_buffers(typed: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return (the words without OSU's memory of both buffers, which is at the end: "D D", "H H"; --device for it)."""
    words = list(typed)
    ends = [word.lower() for word in words[-2:]]
    if len(ends) < 2 or not all(re.fullmatch("h|d|m[dh]?", end) for end in ends):
        return words, []
    device = _MEMORY.get(ends[0])
    if device is None or ends[0] != ends[1]:
        reason = "both buffers are in one kind of memory, of the host or of a GPU"
        raise UsageError(f"{' '.join(words[-2:])}: {reason}: use `H H` or `D D`")
    return words[:-2], ["--device", device]


# IMB-MPI1

_YES, _NO = ("1", "on", "yes", "enable", "true"), ("0", "off", "no", "disable", "false")


def _imb_types(option: str) -> Callable[[str], Sequence[str] | None]:
    names = {"byte": "uint8", "char": "int8", "int": "int32", "float": "float32", "double": "float64"}
    return lambda value: [option, names[value.lower()]] if value.lower() in names else None


def _imb_sizes(value: str) -> Sequence[str] | None:
    """Return the sizes of "7" (2^0 to 2^7) or "3:7"."""
    least, colon, most = value.partition(":")
    if not colon:
        least, most = "0", value
    if not all(end.isascii() and end.isdecimal() and int(end) < 40 for end in (least, most)):
        return None
    return ["-b", str(1 << int(least)), "-e", str(1 << int(most)), "-f", "2"]


def _synchronized(value: str) -> Sequence[str] | None:
    if value.lower() in _YES:
        return ["--mode", "isolated"]
    return ["--mode", "pipelined"] if value.lower() in _NO else None


_IMB_OPTIONS = {
    "-iter": PeerOption(_number("-n"), "the number does not depend on the size: use `-iter N`, or `--precision PCT`"),
    "-msglog": PeerOption(_imb_sizes, "not valid logarithms of sizes: use `-msglog MIN:MAX`, e.g. -msglog 3:10 for 8 B to 1 KiB"),
    "-npmin": PeerOption(lambda value: ["--npmin", value], ""),
    "-time": PeerOption(lambda value: ["--max-time", value], ""),
    "-iter_policy": PeerOption(_only("off"), "samples are taken until the interval is narrow: use `-iter N`, or `--precision PCT`"),
    "-msglen": PeerOption(_only(), "files of sizes are not read: use `--sizes 8,1K,1M`"),
    "-mem": PeerOption(_only(), "memory is checked before the start: use `-msglog MIN:MAX` for smaller sizes"),
    "-off_cache": PeerOption(_choice(**{"-1": "--buffers rotating"}), "use `--buffers rotating`, 64 MiB of buffers in turn"),
    "-multi": PeerOption(_only(), "use `--split 'DIV 2'` for groups of 2 ranks at the same time"),
    "-map": PeerOption(_only(), "ranks are placed by the launcher: use its options, such as --map-by"),
    "-input": PeerOption(_only(), "files of benchmarks are not read: write a suite, and use `collbench run FILE`"),
    "-include": PeerOption(_only(), "name one benchmark without -include"),
    "-exclude": PeerOption(_only(), "name one benchmark without -exclude"),
    "-thread_level": PeerOption(_only("single"), "each rank has one thread that calls MPI: remove the option"),
    "-sync": PeerOption(_synchronized, "use `-sync 1` (synchronize before each call), or `-sync 0` (back to back)"),
    "-imb_barrier": PeerOption(_only(*_NO), "collbench has a barrier of its own: remove the option"),
    "-root_shift": PeerOption(_only(*_NO), "the root is fixed: use `--root 0,1` for a row of each root"),
    "-data_type": PeerOption(_imb_types("--dtype"), "not a supported type: use byte, char, int, float or double"),
    "-red_data_type": PeerOption(_imb_types("--dtype"), "not a supported type: use byte, char, int, float or double"),
    "-contig_type": PeerOption(_only("base"), "derived types are not supported here: use `collbench kv --method mpi-type`"),
    "-zero_size": PeerOption(_only(*_NO), "messages of 0 bytes are not measured: the smallest size is `-msglog 0:MAX`"),
    "-mem_alloc_type": PeerOption(_choice(cpu="--device cpu", device="--device cuda"), "use `cpu` or `device`"),
    "-help": PeerOption(lambda value: ["--help"], "", 0),
}  # fmt: skip


def _of_imb(program: str, typed: Sequence[str]) -> list[str]:
    """Return the words with the benchmark as the command: it may be anywhere among IMB's options."""
    words = _translated(program, typed, _IMB_OPTIONS, {})
    if words == ["--help"]:
        return words
    names: list[str] = []
    rest: list[str] = []
    for place, word in enumerate(words):
        before = words[place - 1] if place else ""
        is_name = re.fullmatch("[A-Za-z][A-Za-z_]*", word) and not (before.startswith("-") and "=" not in before)
        (names if is_name else rest).append(word)
    if len(names) != 1:
        what = f"{len(names)} benchmarks ({', '.join(names)})" if names else "no benchmark"
        raise UsageError(f"{program} with {what}: name one, e.g. `{program} Allreduce` (`collbench run SUITE` measures several)")
    return [names[0], *rest]
