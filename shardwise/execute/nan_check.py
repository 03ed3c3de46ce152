"""check_nans: find the op that produced a NaN or an infinity, its source line and its operands."""

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
from shardwise.runtime.array import ArrayImpl


def check_nans(program: Program, args: Sequence[ArrayImpl], results: Sequence[ArrayImpl]) -> None:
    """Raise FloatingPointError if a result has a NaN (`debug_nans`) or an infinity (`debug_infs`) and no argument has.

    The program is then evaluated again in numpy, op by op, to find the first op that produced it.
    """
    args, results = [array.words for array in args], [array.words for array in results]
    enabled = [name for name, on in (("nan", config.debug_nans), ("inf", config.debug_infs)) if on]
    for name in enabled:
        is_bad = _has_nan if name == "nan" else _has_inf
        if not any(is_bad(_local_elements(result)) for result in results):
            continue
        readable = all(array.is_readable for array in args)
        culprit = _find_culprit(program, args, is_bad) if readable else None
        if culprit is None:
            if any(is_bad(_local_elements(array)) for array in args if not array.is_deleted()):
                continue  # an argument had it already
            raise FloatingPointError(f"{name} in a result of `{program.name}`")
        equation, operands = culprit
        operand_lines = "".join(f"\n  operand {i}: {_describe(x)}" for i, x in enumerate(operands))
        raise FloatingPointError(
            f"{name} in the result of `{equation.op.name}` at {equation.source}, in `{program.name}`.{operand_lines}"
        )


def _find_culprit(program: Program, args: Sequence[ArrayImpl], is_bad: Callable[[Any], bool]) -> Any:
    """Return the first equation with a bad result and its operands; None if the program cannot be evaluated again."""
    try:
        again = drop_effects(lower_keys(inline(program)))
    except TypeError:  # the result of an effect cannot be reproduced
        return None
    return find_bad_equation(again, [array.numpy() for array in args], is_bad)


def _local_elements(array: ArrayImpl) -> np.ndarray[Any, Any]:
    """Return the elements that this process can read; of an unreduced array, those of its terms."""
    if array.is_readable:
        return array.numpy()
    return np.concatenate([shard.numpy().ravel() for shard in array.distinct_shards()])


def _has_nan(x: np.ndarray[Any, Any]) -> bool:
    return is_inexact(x.dtype) and bool(np.isnan(x.astype(numpy_carrier(x.dtype))).any())


def _has_inf(x: np.ndarray[Any, Any]) -> bool:
    return is_inexact(x.dtype) and bool(np.isinf(x.astype(numpy_carrier(x.dtype))).any())


def _describe(x: np.ndarray[Any, Any]) -> str:
    if x.size <= 8:
        return f"{x.dtype}{list(x.shape)} {x.tolist()}"
    return f"{x.dtype}{list(x.shape)} from {x.min()} to {x.max()}"
