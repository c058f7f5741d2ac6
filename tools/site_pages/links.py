"""Links out of docs/: the files of the repository that a page links to are part of the site, below `repository/`.

So the same relative links work on a code host, in an editor, and in the site without a network.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from posixpath import dirname, join, normpath, relpath

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
FOLDER = "repository"  # of the site
GENERATED = "docs/reference/README.md"  # its headings name the pages that are generated, for readers of the repository
_COMMANDS = "commands"  # its heading of the page reference/cli/index.md
_LARGEST_BYTES = 4 << 20  # of a file that is copied
_FENCED = re.compile(r"^(`{3,}|~{3,}).*?^\1[`~]*$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]+`")
_LINK = re.compile(r"""(?P<before>\]\(|\b(?:src|href)=")(?P<target>[^)\s"#]+)(?P<after>(?:#[^)\s"]*)?[)"])""")
_TEXT = re.compile(r"(?<!!)\[([^\]]*)\]\(gone:\)")
_INCLUDED = re.compile(r'^(?:# )?--8<-- "([^"]+)"$', re.MULTILINE)  # as a comment where a formatter reads the block as Python


def repository_files(pages: Iterable[tuple[str, str]]) -> dict[str, Path]:
    """Return the files outside docs/ that these pages (path in docs/, text) link to, and those that they link to, by path in the site."""
    found: dict[str, Path] = {}
    waiting = [(f"docs/{path}", text) for path, text in pages]
    while waiting:
        at, text = waiting.pop()
        for target in _targets(expanded(text, at), at):
            file = file_at(target)
            if file is None or target.startswith("docs/") or f"{FOLDER}/{target}" in found:
                continue
            name = file.relative_to(ROOT).as_posix()
            found[f"{FOLDER}/{name}"] = file
            if file.suffix == ".md":
                waiting.append((name, file.read_text(encoding="utf-8")))
    return found


def file_at(target: str) -> Path | None:
    """Return the file for a path from the repository's folder: of a folder its README.md. None if there is none, or it is too large."""
    file = ROOT / target
    if file.is_dir():
        file /= "README.md"
    return file if file.is_file() and file.stat().st_size <= _LARGEST_BYTES else None


def expanded(text: str, at: str) -> str:
    r"""Return the text of the page `at` with each line `--8<-- "FILE"` replaced by that file of the repository.

    Markdown is included without its title, and with links that fit the page.
    """

    def content(match: re.Match[str]) -> str:
        body = (ROOT / match[1]).read_text(encoding="utf-8").rstrip("\n")
        if not match[1].endswith(".md"):
            return body
        body = re.sub(r"\A# .*\n", "", body)
        folder = dirname(match[1])
        return _outside_code(body, lambda part: _LINK.sub(lambda link: _moved(link, folder, dirname(at)), part))

    return _INCLUDED.sub(content, text)


def rewritten(text: str, source: str) -> str:
    """Return the text of a page of the site, `source` its path there, with links to files of the repository as links inside the site."""
    at = source.removeprefix(f"{FOLDER}/") if source.startswith(f"{FOLDER}/") else f"docs/{source}"

    def link(match: re.Match[str]) -> str:
        if _is_outside(match["target"]):
            return match[0]
        target = normpath(join(dirname(at), match["target"]))
        if target == GENERATED and match["after"].startswith("#"):
            name = match["after"][1:-1]
            inside = "reference/cli/index.md" if name == _COMMANDS else f"reference/{name}.md"
            return f"{match['before']}{relpath(inside, dirname(source) or '.')}{match['after'][-1]}"
        if target.startswith("docs/"):
            inside = target.removeprefix("docs/")
            if inside.endswith(".ipynb"):
                inside = inside.removesuffix(".ipynb") + ".md"
        elif file := file_at(target):
            inside = f"{FOLDER}/{file.relative_to(ROOT).as_posix()}"
        else:  # a folder without a page becomes plain text; mkdocs warns of a path that does not exist
            return f"{match['before']}gone:)" if match["before"] == "](" and (ROOT / target).exists() else match[0]
        return f"{match['before']}{relpath(inside, dirname(source) or '.')}{match['after']}"

    def links(part: str) -> str:
        return _TEXT.sub(r"\1", _LINK.sub(link, part))

    return _outside_code(expanded(text, at), links)


def _outside_code(text: str, change: Callable[[str], str]) -> str:
    """Return the text with the change in all parts that are not fenced blocks; inline code has no links."""
    parts, at = [], 0
    for block in _FENCED.finditer(text):
        parts += [change(text[at : block.start()]), block[0]]
        at = block.end()
    return "".join([*parts, change(text[at:])])


def _targets(text: str, at: str) -> list[str]:
    """Return the paths that a page links to, from the repository's folder."""
    plain = _CODE.sub("", _FENCED.sub("", text))
    found = [match["target"] for match in _LINK.finditer(plain) if not _is_outside(match["target"])]
    return [target for each in found if not (target := normpath(join(dirname(at), each))).startswith("..")]


def _moved(match: re.Match[str], old: str, new: str) -> str:
    if _is_outside(match["target"]):
        return match[0]
    return f"{match['before']}{relpath(normpath(join(old, match['target'])), new or '.')}{match['after']}"


def _is_outside(target: str) -> bool:
    """Return whether a link is not a path: a URL, a mail address, or an absolute path."""
    return ":" in target or target.startswith("/")
