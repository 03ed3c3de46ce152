"""Which arguments of a function are static (part of the program) and which are donated (their memory is reused).

Both are given by number, by name, or by both; a number and the name of the same parameter mean the same.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

from shardwise import tree
from shardwise.api.arguments import describe_function


@final
@dataclass(frozen=True)
class Selection:
    """Parameters of a function, by position and by name."""

    numbers: frozenset[int]
    names: frozenset[str]

    def __bool__(self) -> bool:
        return bool(self.numbers or self.names)

    def has(self, place: int, count: int) -> bool:
        """Whether positional argument `place` of `count` is selected; negative numbers count from the end."""
        return place in self.numbers or place - count in self.numbers


NOTHING = Selection(frozenset(), frozenset())


def select(function: Callable[..., Any], what: str, numbers: Any, names: Any) -> Selection:
    """The parameters given by `numbers` (an int or several) and `names` (a string or several)."""
    found = {numbers} if isinstance(numbers, int) else set(numbers or ())
    called = {names} if isinstance(names, str) else set(names or ())
    for argument, wrong in (
        ("argnums", [number for number in found if not isinstance(number, int)]),
        ("argnames", [name for name in called if not isinstance(name, str)]),
    ):
        if wrong:
            kind = "ints" if argument == "argnums" else "strings"
            raise TypeError(f"{what}_{argument} of {describe_function(function)} are {kind}, not {wrong[0]!r}")
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # some callables have no signature: numbers and names stand for themselves
        return Selection(frozenset(found), frozenset(called))
    kinds = inspect.Parameter
    positional = [p.name for p in parameters if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)]
    variadic = any(p.kind is kinds.VAR_POSITIONAL for p in parameters)
    named = {p.name for p in parameters if p.kind in (kinds.KEYWORD_ONLY, kinds.POSITIONAL_OR_KEYWORD)}
    if (unknown := sorted(called - named)) and not any(p.kind is kinds.VAR_KEYWORD for p in parameters):
        raise ValueError(
            f"{what}_argnames of {describe_function(function)} name {', '.join(map(repr, unknown))}, but its "
            "parameters are "
            f"{', '.join(p.name for p in parameters) or 'none'}"
        )
    for number in sorted(found):
        if not -len(positional) <= number < len(positional) and not variadic:
            raise ValueError(
                f"{what}_argnums of {describe_function(function)} has {number}, but it has {len(positional)} "
                "positional "
                "parameters"
            )
    by_name = {positional.index(name) for name in called if name in positional}
    by_number = {positional[n] for n in found if -len(positional) <= n < len(positional) and positional[n] in named}
    return Selection(frozenset(found | by_name), frozenset(called | by_number))


@final
@dataclass(frozen=True)
class Split:
    """Arguments with the static ones taken out; `key` is what they are, for a cache."""

    args: tuple[Any, ...]
    keywords: dict[str, Any]
    key: tuple[Any, ...]
    places: tuple[int, ...]  # of the dynamic positional arguments among all
    static_args: dict[int, Any]
    static_keywords: dict[str, Any]

    def bind(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function of the dynamic arguments alone."""
        if not self.key:
            return function
        count = len(self.places) + len(self.static_args)

        def bound(*args: Any, **keywords: Any) -> Any:
            given: list[Any] = [self.static_args.get(place) for place in range(count)]
            for place, value in zip(self.places, args, strict=True):
                given[place] = value
            return function(*given, **keywords, **self.static_keywords)

        bound.__name__ = getattr(function, "__name__", type(function).__name__)
        bound.__wrapped__ = function  # type: ignore[attr-defined]
        bound.__signature__ = self._signature(function)  # type: ignore[attr-defined]
        return bound

    def _signature(self, function: Callable[..., Any]) -> inspect.Signature | None:
        """The function's signature without the static parameters: messages name arguments by it."""
        try:
            whole = inspect.signature(function)
        except (TypeError, ValueError):
            return None
        kept = [
            parameter
            for place, (name, parameter) in enumerate(whole.parameters.items())
            if place not in self.static_args and name not in self.static_keywords
        ]
        return whole.replace(parameters=kept)


def split(function: Callable[..., Any], static: Selection, args: tuple[Any, ...], keywords: dict[str, Any]) -> Split:
    """Arguments apart from those that are static, which must be hashable."""
    if not static:
        return Split(args, keywords, (), tuple(range(len(args))), {}, {})
    fixed = {place: args[place] for place in range(len(args)) if static.has(place, len(args))}
    named = {name: value for name, value in keywords.items() if name in static.names}
    key: list[Any] = []
    for label, value in (*fixed.items(), *sorted(named.items())):
        try:
            hash(value)
        except TypeError:
            raise ValueError(
                f"static argument {label!r} of {describe_function(function)} is {value!r} of type "
                f"{type(value).__name__}, "
                "which cannot be hashed: static arguments are part of what a compiled program is found by. "
                "Use a tuple for a list, or pass it as an array."
            ) from None
        key.append((label, type(value), value))
    places = tuple(place for place in range(len(args)) if place not in fixed)
    dynamic = {name: value for name, value in keywords.items() if name not in named}
    return Split(tuple(args[place] for place in places), dynamic, tuple(key), places, fixed, named)


def donated_leaves(donate: Selection, found: Split) -> tuple[bool, ...]:
    """For each array among the dynamic arguments, whether it is donated."""
    count = len(found.places) + len(found.static_args)
    flags: list[bool] = []
    for place, arg in zip(found.places, found.args, strict=True):
        flags += [donate.has(place, count)] * len(tree.leaves(arg))
    for name in sorted(found.keywords):
        flags += [name in donate.names] * len(tree.leaves(found.keywords[name]))
    return tuple(flags)


def check_overlap(function: Callable[..., Any], static: Selection, donate: Selection) -> None:
    """An argument cannot be both static and donated."""
    both: Sequence[Any] = sorted(static.numbers & donate.numbers) or sorted(static.names & donate.names)
    if both:
        raise ValueError(
            f"argument {both[0]!r} of {describe_function(function)} is static and donated: it can be one only"
        )
