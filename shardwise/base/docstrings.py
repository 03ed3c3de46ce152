"""Docstrings of function families: a decorator adds the entries of Args, Returns and Raises that the functions share.

The docstring in the source has the summary, the example, and the entries that are particular to its function:

    ROOTS = Family(
        {"x": Parameter("an array or a number.", "TypeError: if {} is not an array or a number.")},
        returns="An array of the shape of `x`.",
    )

    @documented(ROOTS)
    def cbrt(x: ArrayLike) -> Array:
        \"""Compute the cube root element-wise.

        Example:
            >>> cbrt(8.0)
            2.0
        \"""

`cbrt.__doc__` then has all sections. A docstring is completed when its module is loaded, by splitting and joining
strings only: about 20 µs per function.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import CodeType, FunctionType
from typing import Any, NamedTuple, TypeVar, cast, final

_Function = TypeVar("_Function", bound=Callable[..., Any])
_LINE_BREAK = "\n"  # between the lines of an entry of a `Family`


class Parameter(NamedTuple):
    """The meaning of a parameter, and the error for a wrong argument, in which `{}` is the name of the parameter.

    The errors of several parameters with the same text become one entry: "TypeError: if `a` or `b` is not an array."
    """

    text: str
    error: str = ""


@final
class Family:
    """The entries of docstrings that functions share. A newline in an entry starts an indented line.

    Args:
        args: the meaning of each parameter by its name, or by several names such as "x, y". A function gets the entries
            of the parameters that it has.
        returns: the result; functions whose docstring has the section Returns do not get it.
        raises: the errors that do not depend on one parameter, each as "TypeError: if the shapes do not broadcast."
    """

    def __init__(self, args: Mapping[str, str | Parameter], returns: str = "", raises: Sequence[str] = ()) -> None:
        self.args = {
            names: parameter if isinstance(parameter, Parameter) else Parameter(parameter)
            for names, parameter in args.items()
        }
        self.returns, self.raises = returns, tuple(raises)
        self.entries = {
            name: f"{names}: {parameter.text}" for names, parameter in self.args.items() for name in _split_names(names)
        }
        self.errors = {
            name: parameter.error
            for names, parameter in self.args.items()
            if parameter.error
            for name in _split_names(names)
        }

    def extended(
        self, args: Mapping[str, str | Parameter] | None = None, returns: str = "", raises: Sequence[str] = ()
    ) -> "Family":
        """Return a family with these entries too. They replace those for the same names, and `returns`."""
        return Family({**self.args, **(args or {})}, returns or self.returns, (*self.raises, *raises))


def documented(family: Family) -> Callable[[_Function], _Function]:
    """Complete the docstring of a function with the shared entries of `family`. It stands directly above `def`.

    Entries in the source replace shared ones: those of Args for the same parameter, those of Raises for the same error,
    and Returns.
    """

    def complete(function: _Function) -> _Function:
        if function.__doc__ is not None:  # `python -OO` removes docstrings
            names = _parameter_names(cast(FunctionType, function).__code__)
            function.__doc__ = _completed(function.__doc__, names, family)
        return function

    return complete


def _completed(docstring: str, names: Sequence[str], family: Family) -> str:
    """Return the docstring of a function whose parameters are `names`, with the shared entries of `family`."""
    summary, *paragraphs = docstring.rstrip().split("\n\n")
    # Python 3.13 removes the indentation when it compiles the source; earlier versions keep it.
    margin = paragraphs[0][: -len(paragraphs[0].lstrip())] if paragraphs else ""
    indent = f"\n{margin}    "
    description, other_sections = [summary], list[str]()
    own = {"Args": "", "Returns": "", "Raises": ""}
    for paragraph in paragraphs:
        title, colon, body = paragraph.removeprefix(margin).partition(":\n")
        if colon and title in own:
            own[title] = f"\n{body}"
        elif other_sections or (colon and title.isidentifier()):
            other_sections.append(paragraph)
        else:
            description.append(paragraph)
    sections = {
        "Args": _args(_entries(own["Args"], indent), names, family),
        "Returns": _entries(own["Returns"], indent) or [family.returns],
        "Raises": _raises(_entries(own["Raises"], indent), names, family),
    }
    shared = [
        f"{margin}{title}:{''.join(indent + entry.replace(_LINE_BREAK, f'{indent}    ') for entry in entries)}"
        for title, entries in sections.items()
        if any(entries)
    ]
    return "\n\n".join([*description, *shared, *other_sections]) + f"\n{margin}"


def _args(own: Sequence[str], names: Sequence[str], family: Family) -> list[str]:
    """Return the entries of Args in the order of the parameters `names`."""
    entries = {**family.entries, **{name: entry for entry in own for name in _split_names(entry.partition(":")[0])}}
    return list(dict.fromkeys(entries[name] for name in names if name in entries))  # some names share one entry


def _raises(own: Sequence[str], names: Sequence[str], family: Family) -> list[str]:
    """Return the entries of Raises: those in the source, those of the parameters `names`, and those of the family."""
    subjects: dict[str, list[str]] = {}
    for name in names:
        if name in family.errors:
            subjects.setdefault(family.errors[name], []).append(f"`{name}`")
    shared = [error.format(_enumeration(listed)) for error, listed in subjects.items()]
    own_errors = {entry.partition(":")[0] for entry in own}
    return [*own, *(entry for entry in (*shared, *family.raises) if entry.partition(":")[0] not in own_errors)]


def _entries(section: str, indent: str) -> list[str]:
    """Return the entries of a section in the source. The lines of an entry are separated as in a `Family`."""
    return section.replace(f"{indent}    ", _LINE_BREAK).split(indent)[1:]


def _split_names(names: str) -> list[str]:
    """Return the names of an entry of Args, such as "x, y" or "*args"."""
    return names.replace("*", "").split(", ")


def _enumeration(names: Sequence[str]) -> str:
    """Return "a", "a or b", or "a, b or c"."""
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _parameter_names(code: CodeType) -> list[str]:
    """Return the names of the parameters of a function in the order of its signature."""
    positional, named = code.co_argcount, code.co_argcount + code.co_kwonlyargcount
    has_args, has_keywords = (bool(code.co_flags & flag) for flag in (inspect.CO_VARARGS, inspect.CO_VARKEYWORDS))
    names = code.co_varnames[: named + has_args + has_keywords]
    return [*names[:positional], *names[named : named + has_args], *names[positional:named], *names[named + has_args :]]
