"""What tests read in a picture of a page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from xml.etree import ElementTree

from collbench.report.html.drawing import Picture

_CORNERS = (("cx", "cy"), ("x", "y"), ("x1", "y1"), ("x2", "y2"))


def texts(picture: Picture) -> list[str]:
    """Return the texts of a picture."""
    return [each.text or "" for each in ElementTree.fromstring(picture.markup("")).iter() if each.tag == "text"]


def outside(picture: Picture) -> list[tuple[float, float]]:
    """Return the points of a picture that are outside it."""
    return outside_markup(picture.markup(""))


def outside_markup(drawing: str) -> list[tuple[float, float]]:
    """Return the points of an SVG that are outside its view box. Relative parts of paths, such as those of markers, are not read."""
    root = ElementTree.fromstring(drawing)
    width, height = (float(each) for each in root.attrib["viewBox"].split()[2:])
    return [(x, y) for x, y in _points(root) if not (0 <= x <= width and 0 <= y <= height)]


def _points(root: ElementTree.Element) -> Iterator[tuple[float, float]]:
    for each in root.iter():
        for names in _CORNERS:
            if all(name in each.attrib for name in names):
                yield float(each.attrib[names[0]]), float(each.attrib[names[1]])
        if "transform" in each.attrib:
            x, y = re.findall(r"-?[\d.]+", each.attrib["transform"])
            yield float(x), float(y)
        else:
            yield from ((float(x), float(y)) for x, y in re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", each.attrib.get("d", "")))
