"""XML that nobody vouches for: entities, depth, number of elements and length of a tag are bounded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from collbench.machine.readers.text import Unreadable, bounded, printable

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

LONGEST_TAG = 1 << 20  # characters of names and values


@dataclass(frozen=True, slots=True)
class Limits:
    """What a file of one kind can have.

    what        whose file it is, for the sentence: "a machine's topology"
    again       the remedy in every sentence
    doctype     the kind begins with a DOCTYPE; entities are refused in any case
    """

    what: str
    again: str
    characters: int
    depth: int
    elements: int
    doctype: bool = False


def top_element(text: str, name: str, limits: Limits) -> Element:
    """The top element. Raises Unreadable for broken and hostile XML, and for what is bigger than the limits."""
    from defusedxml.ElementTree import XMLParser

    called = printable(name)
    bounded(text, called, limits.characters, limits.what, limits.again)
    # Fed whole: fed in blocks, the parser begins a token without an end anew with every block, and its time grows with the square.
    parser = XMLParser(target=_Tree(called, limits), forbid_dtd=not limits.doctype)
    try:
        parser.feed(text.lstrip("\ufeff \t\r\n"))
        top: Element | None = parser.close()
    except (SyntaxError, ValueError, LookupError, AssertionError) as why:
        reason = printable(str(why) or type(why).__name__, 120)
        raise Unreadable(f"{called} is broken XML ({reason}): {limits.again}") from None
    if top is None:
        raise Unreadable(f"{called} holds no XML: {limits.again}")
    return top


class _Tree:
    """Builds the elements, as the parser calls it, within the limits."""

    def __init__(self, name: str, limits: Limits) -> None:
        from xml.etree.ElementTree import TreeBuilder

        self._builder, self._name, self._limits = TreeBuilder(), name, limits
        self._depth = self._count = 0
        self.data, self.close = self._builder.data, self._builder.close

    def start(self, tag: str, attributes: dict[str, str]) -> Any:
        """A tag begins an element."""
        self._depth += 1
        self._count += 1
        if self._depth > self._limits.depth or self._count > self._limits.elements:
            self._refuse("nests deeper or has more elements than a machine does")
        if sum(map(len, (tag, *attributes, *attributes.values()))) > LONGEST_TAG:
            self._refuse(f"has a tag longer than {LONGEST_TAG >> 20} Mi characters, which no machine has")
        return self._builder.start(tag, attributes)

    def end(self, tag: str) -> Any:
        """A tag ends an element."""
        self._depth -= 1
        return self._builder.end(tag)

    def _refuse(self, why: str) -> NoReturn:
        raise Unreadable(f"{self._name} {why}: {self._limits.again}")
