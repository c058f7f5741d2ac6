"""Reduce the capture of a machine to the facts that the readers read, and mask it: `python -m tests.machines.reduce FOLDER…`."""

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from collbench.machine.archive import SUFFIXES, open_archive
from collbench.machine.files import Files, Folder
from collbench.machine.gather import Mask, Parts, collect, write
from collbench.machine.readers import nccl_log
from collbench.machine.readers.nccl_lines import is_nccl_log
from collbench.machine.readers.text import Unreadable
from collbench.machine.sources import READERS, text_of
from tests.machines.captures import FOLDER
from tests.machines.lstopo import lstopo_facts

Same = Callable[[str], bool]


def main(argv: Sequence[str] | None = None) -> None:
    """Write one .toml for each capture, and a .tar.xz next to it for one with the files of /sys and /proc."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("captures", nargs="+", type=Path, metavar="FOLDER", help="outputs of tools; a folder or tarball of /sys and /proc")
    parser.add_argument("--rename", action="append", default=[], metavar="OLD=NEW", help="replace a host name; repeatable")
    parser.add_argument("--out", type=Path, default=FOLDER)
    options = parser.parse_args(argv)
    names = [text.split("=", 1) for text in options.rename]
    for folder in options.captures:
        mask = Mask()  # one for all files: an id that two of them have stays the same
        files = [path for path in sorted(folder.iterdir()) if path.is_file() and not path.name.endswith(SUFFIXES)]
        texts = {path.name: mask.text(renamed(text_of(path), names)) for path in files}
        source = texts.pop("SOURCE.txt", "")
        facts = json.loads(texts.pop("EXPECTED.json", "{}"))
        if "lstopo.xml" in texts:
            facts["lstopo"] = lstopo_facts(texts.pop("lstopo.xml"))
        reduced = {name.removesuffix(".gz"): reduce(text, name.removesuffix(".gz")) for name, text in texts.items()}
        (options.out / f"{folder.name}.toml").write_text(toml(source.strip(), facts, reduced), encoding="utf-8")
        if (tree := tree_of(folder)) is not None:
            (options.out / f"{folder.name}.tar.xz").unlink(missing_ok=True)
            write(options.out / f"{folder.name}.tar.xz", reduced_tree(tree))


def renamed(text: str, names: Sequence[Sequence[str]]) -> str:
    for old, new in names:
        text = text.replace(old, new)
    return text


def reduce(text: str, name: str) -> str:
    """Return the text without the parts that its reader ignores. Tables of results, and texts without a reader, stay whole."""
    from collbench.plugins.importers import nccl_tests

    read = reader_of(text, name)
    if read is None or nccl_tests.knows(text.splitlines()):
        return text
    whole = read(text)

    def same(shorter: str) -> bool:
        return read(shorter) == whole

    return reduced_xml(text, same) if name.endswith(".xml") else reduced_lines(text, same)


def reader_of(text: str, name: str) -> Callable[[str], Any] | None:
    """Return a function that reads such a text: what the reader returns, or why it refuses XML. None if no reader reads it."""

    def read(text: str) -> Any:
        for reader in READERS:
            if reader.looks_like(text):
                try:
                    return reader.kind, reader.read(text, name)
                except Unreadable as why:
                    return (reader.kind, str(why)) if name.endswith(".xml") else None
        return nccl_log.read(text, name) if is_nccl_log(text) else None

    return None if read(text) is None else read


def reduced_lines(text: str, same: Same) -> str:
    """Drop lines: first all that begin with the same word, then ever smaller blocks."""
    lines = text.splitlines(keepends=True)
    for word in sorted({first_word(line) for line in lines}):
        shorter = [line for line in lines if first_word(line) != word]
        lines = shorter if same("".join(shorter)) else lines
    size = len(lines) // 2
    while size:
        place = 0
        while place < len(lines):
            shorter = lines[:place] + lines[place + size :]
            if same("".join(shorter)):
                lines = shorter
            else:
                place += size
        size //= 2
    return "".join(lines)


def first_word(line: str) -> str:
    return re.split(r"[\s:]", f"{line.strip()} ", maxsplit=1)[0]


def reduced_xml(text: str, same: Same) -> str:
    """Drop attributes, kinds of elements, elements, and sentences of a leading comment, and write the rest anew."""
    head = "".join(re.findall(r"<\?xml.*?\?>\s*|<!DOCTYPE[^>]*>\s*", text[:1000]))
    found = re.match(r"\s*<!--(.*?)-->", text, re.DOTALL)
    sentences = re.findall(r"\S[^.]*\.?", " ".join(found[1].split())) if found else []
    top = ElementTree.fromstring(text)

    def written() -> str:
        ElementTree.indent(top, " ")
        comment = f"<!-- {' '.join(sentences) or 'a comment'} -->\n" if found else ""
        return head + comment + ElementTree.tostring(top, encoding="unicode") + "\n"

    def drop_if_same(drop: Callable[[], Any], restore: Callable[[], Any]) -> None:
        drop()
        if not same(written()):
            restore()

    for sentence in list(sentences):
        place = sentences.index(sentence)
        drop_if_same(lambda place=place: sentences.pop(place), lambda place=place, sentence=sentence: sentences.insert(place, sentence))
    for key in sorted({(each.tag, name) for each in top.iter() for name in each.attrib}):
        having = [(each, dict(each.attrib)) for each in top.iter(key[0]) if key[1] in each.attrib]
        drop_if_same(
            lambda having=having, key=key: [each.attrib.pop(key[1]) for each, _ in having],
            lambda having=having: [each.attrib.update(before) for each, before in having],
        )
    for kind in sorted({(each.tag, each.get("type", "")) for each in top.iter()}):
        drop_elements(top, lambda each, kind=kind: (each.tag, each.get("type", "")) == kind, drop_if_same)
    for parent in list(top.iter()):
        for child in list(parent):
            drop_elements(parent, lambda each, child=child: each is child, drop_if_same)
    return written()


def drop_elements(top: ElementTree.Element, which: Callable[[ElementTree.Element], bool], drop_if_same: Callable[..., None]) -> None:
    """Drop the elements below `top`, if that changes nothing."""
    having = [(parent, list(parent)) for parent in top.iter() if any(map(which, parent))]

    def drop() -> None:
        for parent, before in having:
            parent[:] = [child for child in before if not which(child)]

    def restore() -> None:
        for parent, before in having:
            parent[:] = before

    if having:
        drop_if_same(drop, restore)


def tree_of(folder: Path) -> Files | None:
    """Return the capture's files of /sys and /proc, from a tarball or the folder itself."""
    tarball = next((path for path in sorted(folder.iterdir()) if path.name.endswith(SUFFIXES)), None)
    if tarball:
        return open_archive(tarball)
    return Folder(folder) if (folder / "sys").is_dir() or (folder / "proc").is_dir() else None


def reduced_tree(tree: Files) -> Parts:
    """Return what `probe --gather` archives of these files, without the list of its content, which has the date."""
    parts = collect(tree, {})
    return parts._replace(texts={path: text for path, text in parts.texts.items() if path != "/MANIFEST"})


def toml(source: str, facts: dict[str, Any], files: dict[str, str]) -> str:
    """Return the capture as TOML: where it is from, what it must be read as, and its texts."""
    blocks = [f"source = {json.dumps(source)}\n", *tables("expected", facts)]
    if files:
        blocks.append("[files]\n" + "".join(f"{json.dumps(name)} = '''\n{text}'''\n" for name, text in files.items()))
    return "\n".join(blocks)


def tables(name: str, facts: dict[str, Any]) -> Iterator[str]:
    """Yield the table of these facts, and a table for each one that is a mapping; an unknown fact (None) is left out."""
    plain = {key: value for key, value in facts.items() if value is not None and not isinstance(value, dict)}
    if plain:
        yield f"[{name}]\n" + "".join(f"{toml_key(key)} = {toml_value(value)}\n" for key, value in plain.items())
    for key, value in facts.items():
        if isinstance(value, dict):
            yield from tables(f"{name}.{toml_key(key)}", value)


def toml_value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{toml_key(key)} = {toml_value(each)}" for key, each in value.items()) + " }"
    return f"[{', '.join(map(toml_value, value))}]" if isinstance(value, list) else json.dumps(value, ensure_ascii=False)


def toml_key(text: str) -> str:
    return text if re.fullmatch(r"[\w-]+", text, re.ASCII) else json.dumps(text)


if __name__ == "__main__":
    main(sys.argv[1:])
