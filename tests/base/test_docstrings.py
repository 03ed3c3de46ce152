"""Check how the docstrings of functions are completed with the entries of their family."""

import inspect
import subprocess
import sys
from typing import Any

from shardwise.base.docstrings import Family, Parameter, documented

NOT_AN_ARRAY = "TypeError: if {} is not an array."
FAMILY = Family(
    {
        "x, y": "the arrays.",
        "axis": Parameter("the axis.\nIt may be negative.", "ValueError: if {} is out of bounds."),
        "q": Parameter("the probabilities.", NOT_AN_ARRAY),
        "weights": Parameter("the weights.", NOT_AN_ARRAY),
    },
    returns="An array.",
    raises=["TypeError: if the shapes differ."],
)


def entries(function: Any, section: str) -> list[str]:
    """Return the lines of a section, or an empty list."""
    paragraphs = (inspect.getdoc(function) or "").split("\n\n")
    return next((p.split("\n")[1:] for p in paragraphs if p.startswith(f"{section}:\n")), [])


def test_shared_entries_are_added_for_the_parameters_of_the_function() -> None:
    @documented(FAMILY)
    def function(x: Any, y: Any, axis: Any = None) -> None:
        """Compute something.

        This paragraph stays here.

        Example:
            >>> 1
            1

            >>> 2
            2
        """

    assert inspect.getdoc(function) == inspect.cleandoc(
        """Compute something.

        This paragraph stays here.

        Args:
            x, y: the arrays.
            axis: the axis.
                It may be negative.

        Returns:
            An array.

        Raises:
            ValueError: if `axis` is out of bounds.
            TypeError: if the shapes differ.

        Example:
            >>> 1
            1

            >>> 2
            2
        """
    )


def test_entries_in_the_source_replace_shared_ones() -> None:
    @documented(FAMILY)
    def function(axis: Any) -> None:
        """Compute something.

        Args:
            axis: the axis of the result,
                and of the operand.

        Returns:
            A number
            or two.

        Raises:
            TypeError: if it is Monday.
            TypeError: if it is Tuesday.
        """

    assert entries(function, "Args") == ["    axis: the axis of the result,", "        and of the operand."]
    assert entries(function, "Returns") == ["    A number", "    or two."]
    assert entries(function, "Raises") == [
        "    TypeError: if it is Monday.",
        "    TypeError: if it is Tuesday.",
        "    ValueError: if `axis` is out of bounds.",
    ]


def test_entries_of_the_decorator_replace_shared_ones() -> None:
    @documented(FAMILY, returns="A number.", raises=["TypeError: if it is Monday."])
    def function(axis: Any) -> None:
        """Compute something."""

    assert entries(function, "Returns") == ["    A number."]
    assert entries(function, "Raises") == [
        "    TypeError: if it is Monday.",
        "    ValueError: if `axis` is out of bounds.",
    ]


def test_args_have_the_order_of_the_signature() -> None:
    @documented(FAMILY)
    def function(q: Any, *args: Any, weights: Any, **options: Any) -> None:
        """Compute something.

        Args:
            **options: the options.
            *args: the arguments.
        """

    assert entries(function, "Args") == [
        "    q: the probabilities.",
        "    *args: the arguments.",
        "    weights: the weights.",
        "    **options: the options.",
    ]


def test_equal_errors_of_parameters_are_one_entry() -> None:
    family = FAMILY.extended({"a": Parameter("the array.", NOT_AN_ARRAY)})

    @documented(family)
    def function(a: Any, q: Any, weights: Any) -> None:
        """Compute something."""

    assert entries(function, "Raises")[0] == "    TypeError: if `a`, `q` or `weights` is not an array."


def test_extended_family_replaces_entries_and_adds_errors() -> None:
    family = FAMILY.extended({"axis": "the only axis."}, returns="A list.", raises=["KeyError: never."])

    @documented(family)
    def function(axis: Any) -> None:
        """Compute something."""

    assert entries(function, "Args") == ["    axis: the only axis."]
    assert entries(function, "Returns") == ["    A list."]
    assert entries(function, "Raises") == ["    TypeError: if the shapes differ.", "    KeyError: never."]


def test_docstring_without_sections_is_left_unchanged_by_an_empty_family() -> None:
    @documented(Family({}))
    def function(x: Any) -> None:
        """Compute something."""

    assert inspect.getdoc(function) == "Compute something."


def test_package_works_without_docstrings() -> None:
    program = "import shardwise.numpy as jnp; assert jnp.nansum.__doc__ is None; print(jnp.nansum(1.0))"
    result = subprocess.run([sys.executable, "-OO", "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout == "1.0\n"
