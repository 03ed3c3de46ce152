"""Sphinx extension: the directive `sharding`, which draws meshes and shardings as SVG with the code of plan pages.

Each line of the directive is one picture. A forge shows the lines as text:

    mesh data=2, model=4
    f32[8,16] on data=2, model=4: P('data', 'model')
"""

import ast
import re
from html import escape
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive

from shardwise.explain.drawing import draw_layout, draw_mesh
from shardwise.sharding import AbstractMesh, NamedSharding, PartitionSpec

_MESH = re.compile(r"mesh (?P<mesh>.+)")
_ARRAY = re.compile(r"\w+\[(?P<shape>[\d,]*)\] on (?P<mesh>.+): P\((?P<spec>.*)\)")


class PictureError(ValueError):
    """A line that is no picture."""


def draw(line: str) -> str:
    """Return the picture of a line, as SVG."""
    if match := _MESH.fullmatch(line):
        svg = draw_mesh(_mesh(match["mesh"]))
    elif match := _ARRAY.fullmatch(line):
        shape = tuple(int(size) for size in match["shape"].split(",") if size)
        spec = PartitionSpec(*ast.literal_eval(f"({match['spec']},)" if match["spec"] else "()"))
        mesh = _mesh(match["mesh"])
        svg = draw_layout(shape, NamedSharding(mesh, spec).pin(shape).layout, mesh)
    else:
        raise PictureError(f"cannot draw {line!r}: write `mesh x=2`, or `f32[8,16] on x=2: P('x')`")
    if not svg:
        raise PictureError(f"cannot draw {line!r}: it has too many devices or no elements")
    return svg


def _mesh(text: str) -> AbstractMesh:
    sizes = dict(axis.split("=") for axis in text.split(", "))
    return AbstractMesh(tuple(map(int, sizes.values())), tuple(sizes))


class Sharding(Directive):
    """Pictures in a row, each with its line as the caption."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        try:
            pictures = [
                f"<figure>{draw(line)}<figcaption><code>{escape(line)}</code></figcaption></figure>"
                for line in self.content
            ]
        except PictureError as error:
            raise self.error(str(error)) from error
        return [nodes.raw("", f'<div class="pictures">{"".join(pictures)}</div>', format="html")]


def setup(app: Any) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("sharding", Sharding)
    return {"parallel_read_safe": True}
