"""jax._src.api_util: which parameters of a function are selected."""

from collections.abc import Iterable
from inspect import Parameter, Signature

from shardwise.base.missing_names import report_missing

__all__ = ["infer_argnums_and_argnames"]  # e3nn-jax


def infer_argnums_and_argnames(
    sig: Signature, argnums: int | Iterable[int] | None, argnames: str | Iterable[str] | None
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return the positions and the names of parameters, each inferred from the other where it is None."""
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums or ())
    names = (argnames,) if isinstance(argnames, str) else tuple(argnames or ())
    parameters = [
        (index, name)
        for index, (name, parameter) in enumerate(sig.parameters.items())
        if parameter.kind is Parameter.POSITIONAL_OR_KEYWORD
    ]
    if argnums is None:
        numbers = tuple(index for index, name in parameters if name in names)
    elif argnames is None:
        names = tuple(name for index, name in parameters if index in numbers)
    return numbers, names


report_missing(__name__, __all__)
