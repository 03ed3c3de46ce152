"""The table of libraries in docs/ecosystem.md: name, version, and what runs.

    python -m tests.ecosystem.table     writes it, after `make test-ecosystem` has run all programs

Versions are those that pyproject.toml pins. A program describes in its docstring what it runs, in one paragraph per
library: `Name: what runs.`, or `Name (distribution): what runs.` where the distribution has another name.
"""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/ecosystem.md"
HEAD = "| library | version | what runs |\n|---|---|---|\n"
_PARAGRAPH = re.compile(r"([\w -]+?)(?: \(([\w-]+)\))?: (.*?)\.?", re.DOTALL)
_TABLE = re.compile(re.escape(HEAD) + r"(\|.*\n)*")


def descriptions() -> list[tuple[str, str, str]]:
    """Return the name, the distribution and the description of each library, sorted by name."""
    texts: dict[tuple[str, str], list[str]] = {}
    for path in sorted((ROOT / "tests/ecosystem/programs").glob("*/*.py")):
        for paragraph in (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n"):
            match = _PARAGRAPH.fullmatch(" ".join(paragraph.split()))
            if match is None:
                raise ValueError(f"{path}: the docstring must consist of paragraphs `Name: what runs.`")
            name, distribution, text = match.groups()
            texts.setdefault((name, distribution or name.lower()), []).append(text)
    return [(*library, "; ".join(of)) for library, of in sorted(texts.items(), key=lambda item: item[0][0].lower())]


def pinned(distribution: str) -> str:
    """Return the version of a library that pyproject.toml pins."""
    match = re.search(rf'^    "{distribution}==([\w.]+)",', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert match is not None, f"pyproject.toml does not pin {distribution} in an extra `ecosystem-GROUP`"
    return match.group(1)


def table() -> str:
    """Return the table, with the versions of distributions."""
    return HEAD + "".join(f"| {name} | {pinned(of)} | {text} |\n" for name, of, text in descriptions())


def current() -> str:
    """Return the table of the page."""
    match = _TABLE.search(PAGE.read_text())
    assert match is not None, f"{PAGE} has no table that begins with {HEAD!r}"
    return match.group()


if __name__ == "__main__":
    PAGE.write_text(PAGE.read_text().replace(current(), table()))
