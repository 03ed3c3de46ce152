"""Static and donated arguments: `static_argnums`, `static_argnames`, `donate_argnums`, `donate_argnames`.

A parameter that is selected by its number is also selected when it is passed by name, and the reverse, unless the user
selects both by number and by name: then a number selects positional arguments, and a name keyword arguments.
"""

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, final

from shardwise import tree
from shardwise.api.arguments import describe_function
from shardwise.compiler.ops.shape.constants import IdentityKey, hashable


@final
@dataclass(frozen=True)
class ArgumentSelection:
    """A set of a function's parameters, by position and by name."""

    numbers: frozenset[int]
    names: frozenset[str]

    def __bool__(self) -> bool:
        return bool(self.numbers or self.names)

    def __repr__(self) -> str:
        return f"({', '.join(sorted(self.names) or map(str, sorted(self.numbers)))})"

    def has(self, position: int, count: int) -> bool:
        """Return whether positional argument `position` of `count` is selected; negative numbers count from the end."""
        return position in self.numbers or position - count in self.numbers


NO_ARGUMENTS = ArgumentSelection(frozenset(), frozenset())


def select_arguments(
    function: Callable[..., Any], prefix: str, argnums: int | Iterable[int] | None, argnames: str | Iterable[str] | None
) -> ArgumentSelection:
    """Return the parameters that `argnums` (an int or several) and `argnames` (a string or several) select.

    `prefix` is "static" or "donate": the keywords that the user passed are `{prefix}_argnums` and `{prefix}_argnames`.
    """
    numbers = {argnums} if isinstance(argnums, int) else set(argnums or ())
    names = {argnames} if isinstance(argnames, str) else set(argnames or ())
    for argument, wrong in (
        ("argnums", [number for number in numbers if not isinstance(number, int)]),
        ("argnames", [name for name in names if not isinstance(name, str)]),
    ):
        if wrong:
            expected = "integers" if argument == "argnums" else "strings"
            raise TypeError(
                f"{prefix}_{argument} of {describe_function(function)} must be {expected}, not {wrong[0]!r}"
            )
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # some callables have no signature: numbers and names cannot be matched
        if names:
            raise ValueError(
                f"{prefix}_argnames of {describe_function(function)}: the signature of the function is not known; use "
                f"{prefix}_argnums"
            ) from None
        return ArgumentSelection(frozenset(numbers), frozenset(names))
    kinds = inspect.Parameter
    positional = [p.name for p in parameters if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)]
    variadic = any(p.kind is kinds.VAR_POSITIONAL for p in parameters)
    keyword = {p.name for p in parameters if p.kind in (kinds.KEYWORD_ONLY, kinds.POSITIONAL_OR_KEYWORD)}
    accepts_any = any(p.kind is kinds.VAR_KEYWORD for p in parameters)
    not_keywords = {p.name for p in parameters if p.kind in (kinds.POSITIONAL_ONLY, kinds.VAR_POSITIONAL)}
    if unknown := sorted(names & not_keywords if accepts_any else names - keyword):
        raise ValueError(
            f"{prefix}_argnames of {describe_function(function)} has {', '.join(map(repr, unknown))}, but the "
            f"parameters of the function are {', '.join(p.name for p in parameters) or 'none'}"
        )
    for number in sorted(numbers):
        if not -len(positional) <= number < len(positional) and not variadic:
            raise ValueError(
                f"{prefix}_argnums of {describe_function(function)} has {number}, but the function has "
                f"{len(positional)} positional parameters"
            )
    if argnums is not None and argnames is not None:
        return ArgumentSelection(frozenset(numbers), frozenset(names))
    by_name = {positional.index(name) for name in names if name in positional}
    by_number = {positional[n] for n in numbers if -len(positional) <= n < len(positional) and positional[n] in keyword}
    return ArgumentSelection(frozenset(numbers | by_name), frozenset(names | by_number))


@final
@dataclass(frozen=True)
class SplitArguments:
    """The arguments of one call, split into dynamic and static ones; `key` identifies the static ones in a cache."""

    args: tuple[Any, ...]
    keywords: dict[str, Any]
    key: tuple[Any, ...]
    positions: tuple[int, ...]  # of `args` among all positional arguments
    static_args: dict[int, Any]
    static_keywords: dict[str, Any]

    def bind(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `function` with the static arguments bound: a function of the dynamic ones."""
        if not self.key:
            return function
        count = len(self.positions) + len(self.static_args)

        def bound(*args: object, **keywords: object) -> Any:
            all_args: list[Any] = [self.static_args.get(position) for position in range(count)]
            for position, value in zip(self.positions, args, strict=True):
                all_args[position] = value
            return function(*all_args, **keywords, **self.static_keywords)

        bound.__name__ = getattr(function, "__name__", type(function).__name__)
        bound.__wrapped__ = function  # type: ignore[attr-defined]
        bound.__signature__ = self._signature(function)  # type: ignore[attr-defined]
        return bound

    def _signature(self, function: Callable[..., Any]) -> inspect.Signature | None:
        """Return the function's signature without the static parameters; messages take argument names from it."""
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):
            return None
        dynamic = [
            parameter
            for position, (name, parameter) in enumerate(signature.parameters.items())
            if position not in self.static_args and name not in self.static_keywords
        ]
        return signature.replace(parameters=dynamic)


def split_static(
    function: Callable[..., Any],
    static: ArgumentSelection,
    args: tuple[Any, ...],
    keywords: dict[str, Any],
    cached: bool = True,
) -> SplitArguments:
    """Separate the static arguments from the dynamic ones.

    With `cached`, a program is cached under the static arguments: they must be hashable. Otherwise, those that are not
    are compared by identity.
    """
    if not static:
        return SplitArguments(args, keywords, (), tuple(range(len(args))), {}, {})
    static_args = {position: args[position] for position in range(len(args)) if static.has(position, len(args))}
    static_keywords = {name: value for name, value in keywords.items() if name in static.names}
    key: list[Any] = []
    for argument, value in (*static_args.items(), *sorted(static_keywords.items())):
        key_value = hashable(value)
        if cached and isinstance(key_value, IdentityKey):
            raise ValueError(
                f"static argument {argument!r} of {describe_function(function)} is {value!r} of type "
                f"{type(value).__name__}, which is not hashable: static arguments are part of the key under which the "
                "compiled program is cached. Use a tuple in place of a list, or pass the value as an array."
            )
        key.append((argument, type(value), key_value))
    positions = tuple(position for position in range(len(args)) if position not in static_args)
    dynamic_keywords = {name: value for name, value in keywords.items() if name not in static_keywords}
    return SplitArguments(
        tuple(args[position] for position in positions),
        dynamic_keywords,
        tuple(key),
        positions,
        static_args,
        static_keywords,
    )


def selected_leaves(selection: ArgumentSelection, arguments: SplitArguments) -> tuple[bool, ...]:
    """Return for each leaf of the dynamic arguments whether it is selected."""
    count = len(arguments.positions) + len(arguments.static_args)
    flags: list[bool] = []
    for position, arg in zip(arguments.positions, arguments.args, strict=True):
        flags += [selection.has(position, count)] * len(tree.leaves(arg))
    for name in sorted(arguments.keywords):
        flags += [name in selection.names] * len(tree.leaves(arguments.keywords[name]))
    return tuple(flags)


def check_overlap(function: Callable[..., Any], static: ArgumentSelection, donate: ArgumentSelection) -> None:
    """Raise a ValueError if an argument is both static and donated."""
    both: Sequence[Any] = sorted(static.numbers & donate.numbers) or sorted(static.names & donate.names)
    if both:
        raise ValueError(
            f"argument {both[0]!r} of {describe_function(function)} is both static and donated: only dynamic arguments "
            "can be donated"
        )
