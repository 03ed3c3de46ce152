"""How plans are shown: as text, and as a page. `explain` draws them, and says here how: plans know no pictures."""

from collections.abc import Callable
from html import escape
from os import PathLike
from pathlib import Path
from typing import Any


class _Renderers:
    text: Callable[[Any], str]
    page: Callable[[Any], str]


renderers = _Renderers()


class HtmlReport:
    """What has a name, and can be shown as one page."""

    name: str

    def to_html(self) -> str:
        """One page with all of it, which needs nothing beside it."""
        raise NotImplementedError

    def write_html(self, path: str | PathLike[str]) -> Path:
        """Write that page to a file."""
        file = Path(path)
        file.write_text(self.to_html(), encoding="utf-8")
        return file

    def _repr_html_(self) -> str:
        """The page in a frame of its own: its style must not reach the notebook around it."""
        frame = "width:100%;height:720px;border:1px solid #8884;border-radius:8px"
        return (
            f'<iframe title="plan of {escape(self.name)}" style="{frame}" srcdoc="{escape(self.to_html())}"></iframe>'
        )
