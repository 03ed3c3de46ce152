"""Check that the docstring of every public function has the sections Args, Returns, Raises and Example.

`tests/test_examples.py` runs the examples.
"""

import inspect
import re
from collections.abc import Callable
from enum import EnumType
from typing import Any

import pytest

from tests.test_examples import FUNCTIONS, NO_EXAMPLE

SECTION = re.compile(r"^(Args|Attributes|Returns|Yields|Raises|Example):$", re.MULTILINE)
ENTRY = re.compile(r"^ {4}((?:\*{0,2}\w+)(?:, \*{0,2}\w+)*):", re.MULTILINE)


def sections(function: Callable[..., Any]) -> dict[str, str]:
    """Return the text of each section of a docstring; the text before the first one has the key ""."""
    parts = SECTION.split(inspect.cleandoc(function.__doc__ or ""))
    return {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


def parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    if isinstance(function, EnumType):  # its signature is that of the functional API of enums
        return []
    try:
        return list(inspect.signature(function).parameters.values())
    except ValueError:
        return []


def missing_parts(name: str, function: Callable[..., Any]) -> list[str]:
    """Return what the docstring of a public function lacks."""
    found = sections(function)
    expected = parameters(function)
    documented = {
        entry.lstrip("*")
        for names in ENTRY.findall(found.get("Args", "") + found.get("Attributes", ""))
        for entry in names.replace(" ", "").split(",")
    }
    missing = [] if found[""].strip() else ["a summary"]
    missing += [f"Args: {p.name}" for p in expected if p.name not in documented]
    returns_none = isinstance(function, type) or inspect.signature(function).return_annotation in (None, "None")
    if not returns_none and "Returns" not in found and "Yields" not in found:
        missing.append("Returns")
    if expected and "Raises" not in found and "Attributes" not in found:  # a record that users read, not create
        missing.append("Raises")
    if "Example" not in found and name not in NO_EXAMPLE:
        missing.append("Example")
    return missing


@pytest.mark.parametrize("name", list(FUNCTIONS))
def test_docstring_has_all_sections(name: str) -> None:
    assert missing_parts(name, FUNCTIONS[name]) == []
