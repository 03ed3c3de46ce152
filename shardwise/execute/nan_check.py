"""NaN and infinity, found where they arise: the op, its line in the user's program, and what it was given."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from shardwise.compiler.dtypes import is_inexact, numpy_carrier
from shardwise.compiler.ir.evaluate import find_bad_equation
from shardwise.compiler.ir.program import Program
from shardwise.compiler.transforms.drop_effects import drop_effects
from shardwise.compiler.transforms.inline import inline
from shardwise.compiler.transforms.lower_keys import lower_keys
from shardwise.config import config
from shardwise.runtime.array import Array


def check_nans(program: Program, args: Sequence[Array], results: Sequence[Array]) -> None:
    """A FloatingPointError if a result has what `debug_nans` and `debug_infs` forbid, and the arguments do not.

    The program is then run once more, in numpy, one op after the other, to find the first that made it.
    """
    args, results = [array.words for array in args], [array.words for array in results]
    wanted = [name for name, on in (("nan", config.debug_nans), ("inf", config.debug_infs)) if on]
    for name in wanted:
        bad = _is_nan if name == "nan" else _is_inf
        if not any(bad(_seen(result)) for result in results):
            continue
        whole = all(_is_readable(array) for array in args)
        found = _found(program, args, bad) if whole else None
        if found is None:
            if whole and any(bad(array.numpy()) for array in args):
                continue  # it came in with the arguments
            raise FloatingPointError(f"{name} in a result of `{program.name}`")
        equation, operands = found
        given = "".join(f"\n  operand {i}: {_described(x)}" for i, x in enumerate(operands))
        raise FloatingPointError(
            f"{name} in the result of `{equation.op.name}` at {equation.source}, in `{program.name}`.{given}"
        )


def _found(program: Program, args: Sequence[Array], bad: Callable[[Any], bool]) -> Any:
    try:
        again = drop_effects(lower_keys(inline(program)))
    except TypeError:  # what an effect gave cannot be had again
        return None
    return find_bad_equation(again, [array.numpy() for array in args], bad)


def _seen(array: Array) -> np.ndarray[Any, Any]:
    """The elements that this process can see."""
    if array.is_fully_addressable or array.is_fully_replicated:
        return array.numpy()
    return np.concatenate([part.numpy().ravel() for part in array.distinct_shards()])


def _is_readable(array: Array) -> bool:
    return (array.is_fully_addressable or array.is_fully_replicated) and not array.is_deleted()


def _is_nan(x: np.ndarray[Any, Any]) -> bool:
    return is_inexact(x.dtype) and bool(np.isnan(x.astype(numpy_carrier(x.dtype))).any())


def _is_inf(x: np.ndarray[Any, Any]) -> bool:
    return is_inexact(x.dtype) and bool(np.isinf(x.astype(numpy_carrier(x.dtype))).any())


def _described(x: np.ndarray[Any, Any]) -> str:
    if x.size <= 8:
        return f"{x.dtype}{list(x.shape)} {x.tolist()}"
    return f"{x.dtype}{list(x.shape)} from {x.min()} to {x.max()}"
