"""Read the files of a trace in bounded parts, without their gzip compression."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from collbench.errors import UsageError
from collbench.untrusted import unpacked

_MOST_BYTES = 8 << 30  # of a file, decompressed: a few bytes of gzip can expand to any number
_READ = 1 << 20
_LINES = 8 << 20  # bytes of a block of lines
_LONGEST_LINE = 16 << 20


def unreadable(path: Path, error: OSError) -> UsageError:
    """Return the error for a file that the operating system cannot read, or that has damaged compression."""
    return UsageError(f"{path}: cannot be read: {error.strerror or error}: give another file, or copy it again")


def text_chunks(path: Path, most: int = _MOST_BYTES, size: int | None = None) -> Iterator[bytes]:
    """Yield the content of a file in parts of `size` bytes, by default 1 MiB.

    Raises UsageError for a file that cannot be read, and for one of more than `most` bytes.
    """
    read = 0
    try:
        with unpacked(path) as file:
            while chunk := file.read(size or _READ):
                read += len(chunk)
                if read > most:
                    raise UsageError(f"{path}: it is larger than {most >> 30} GiB: record fewer steps, or give a part of it")
                yield chunk
    except OSError as error:
        raise unreadable(path, error) from error


def line_blocks(path: Path, most: int = _MOST_BYTES) -> Iterator[tuple[int, bytes]]:
    """Yield a text file in blocks of whole lines of about 8 MiB, each with the number of its first line, from 1.

    Raises UsageError as `text_chunks` does, and for a line of more than 16 MiB.
    """
    line = 1
    rest = b""
    for chunk in text_chunks(path, most, _LINES):
        end = chunk.rfind(b"\n") + 1
        if end:
            block = rest + chunk[:end]
            rest = chunk[end:]
            yield line, block
            line += block.count(b"\n")
        else:
            rest += chunk
            if len(rest) > _LONGEST_LINE:
                raise UsageError(f"{path}: line {line} has more than {_LONGEST_LINE >> 20} MiB: record the trace again")
    if rest:
        yield line, rest
