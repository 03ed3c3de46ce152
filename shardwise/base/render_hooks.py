"""Hooks that render plans, meshes and shardings, and the base class of objects with an HTML page.

`explain` installs the renderers, because the compiler does not import it.
"""

from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any, Protocol

from shardwise.base.lazy import lazy_module

html = lazy_module("html")  # its import takes 2.5 ms, and only notebooks need it


class Pictures(Protocol):
    """A module that draws meshes and shardings for notebooks."""

    def mesh_html(self, mesh: Any) -> str | None: ...
    def sharding_html(self, sharding: Any) -> str: ...
    def spec_html(self, spec: Any) -> str: ...


class _Renderers:
    """The functions that render objects of the compiler. `shardwise.explain.plan` sets them.

    Attributes:
        text: formats a Plan as text.
        page: formats a Plan as an HTML page.
        constraints: writes the layouts of a Plan as constraints.
        pictures: draws meshes and shardings as HTML.
    """

    text: Callable[[Any], str]
    page: Callable[[Any], str]
    constraints: Callable[[Any], Any]
    pictures: Pictures


renderers = _Renderers()


class HtmlReport:
    """A named report that renders as one HTML page."""

    name: str

    def to_html(self) -> str:
        """Return the report as one self-contained HTML page."""
        raise NotImplementedError

    def write_html(self, path: str | PathLike[str]) -> Path:
        """Write the HTML page to a file, and return its path."""
        file = Path(path)
        file.write_text(self.to_html(), encoding="utf-8")
        return file

    def _repr_html_(self) -> str:
        """Return the page in an iframe, so that its style does not affect the notebook."""
        frame = "width:100%;height:720px;border:1px solid #8884;border-radius:8px"
        title, page = html.escape(self.name), html.escape(self.to_html())
        return f'<iframe title="plan of {title}" style="{frame}" srcdoc="{page}"></iframe>'
