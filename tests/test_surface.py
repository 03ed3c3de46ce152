"""Compare the public names with their recorded signatures and docstring sections.

`tests/surface.txt` has one line per public name: its signature without annotations, the first line of its docstring,
and the sections of the docstring with the parameters that they document. After an intended change of the public names,
`python -m tests.test_surface` writes the file again.
"""

import difflib
import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.test_docstrings import ENTRY, parameters, sections
from tests.test_examples import FUNCTIONS, NAMESPACES, WITH_CLASSES

ADDRESSED = object()  # its `repr` contains its address
RECORD = Path(__file__).parent / "surface.txt"


class Default:
    """A default value whose `repr` does not contain an address."""

    def __init__(self, value: Any) -> None:
        text = repr(value)
        self.text = f"<{getattr(value, '__name__', type(value).__name__)}>" if " at 0x" in text else text

    def __repr__(self) -> str:
        return self.text


def signature(member: Any) -> str:
    """Return the parameter names, kinds and defaults of a public function or class."""
    empty = inspect.Parameter.empty
    plain = [
        p.replace(annotation=empty, default=empty if p.default is empty else Default(p.default))
        for p in parameters(member)
    ]
    return str(inspect.Signature(plain))


def documentation(member: Any) -> str:
    """Return the first line of a docstring and its sections, with the names of the documented parameters."""
    texts = sections(member)
    summary = texts.pop("").partition("\n")[0]
    names = {title: ENTRY.findall(text) for title, text in texts.items() if title in ("Args", "Attributes")}
    titles = [f"{title}({', '.join(names[title])})" if title in names else title for title in texts]
    return " | ".join([summary, *sorted(titles)])


def kind(member: Any) -> str:
    return "module" if isinstance(member, ModuleType) else "class" if isinstance(member, type) else "value"


def surface() -> list[str]:
    """Return one line for each public name. That of a name from elsewhere, such as `jnp.pi`, has its kind only."""
    lines = [f"{name}{signature(member)} | {documentation(member)}" for name, member in FUNCTIONS.items()]
    lines += [
        f"{full_name}: {kind(getattr(space, name))}"
        for space in [*NAMESPACES, *WITH_CLASSES]
        for name in space.__all__
        if (full_name := f"{space.__name__}.{name}") not in FUNCTIONS
    ]
    return sorted(lines)


def test_public_names_have_their_recorded_signatures_and_sections() -> None:
    changes = list(
        difflib.unified_diff(RECORD.read_text().splitlines(), surface(), "recorded", "now", lineterm="", n=0)
    )
    assert not changes, "\n".join(["if this is intended, run `python -m tests.test_surface`:", *changes])


def test_signature_shows_names_kinds_and_defaults() -> None:
    def function(a: int, /, b: int = 1, *, c: Any = ADDRESSED) -> None: ...

    assert signature(function) == "(a, /, b=1, *, c=<object>)"


def test_documentation_shows_summary_sections_and_parameters() -> None:
    def function() -> None:
        """Summarize.

        Args:
            a, b: numbers.
            **options: others.

        Returns:
            None.
        """

    assert documentation(function) == "Summarize. | Args(a, b, **options) | Returns"


if __name__ == "__main__":
    RECORD.write_text("".join(f"{line}\n" for line in surface()))
