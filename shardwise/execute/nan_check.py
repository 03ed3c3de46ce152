"""check_nans: find the op that produced a NaN or an infinity, its source line and its operands.

If a program spans processes, all of them agree on the check: every process raises the same error, even if the NaN is in
a shard of another process.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from shardwise.base.config import config
from shardwise.compiler.dtypes import is_inexact, numpy_carrier
from shardwise.compiler.ir.evaluate import find_bad_equation
from shardwise.compiler.ir.program import Program
from shardwise.compiler.transforms.drop_effects import drop_effects
from shardwise.compiler.transforms.inline import inline
from shardwise.compiler.transforms.lower_keys import lower_keys
from shardwise.execute.process_rows import WORD, gather_words, process_mesh
from shardwise.execute.transfer import transfer
from shardwise.runtime.array import ArrayImpl

NumpyArray = np.ndarray[Any, Any]


def check_nans(program: Program, args: Sequence[ArrayImpl], results: Sequence[ArrayImpl]) -> None:
    """Raise FloatingPointError if a result has a NaN (`debug_nans`) or an infinity (`debug_infs`) and no argument has.

    The program is then evaluated again in numpy, op by op, to find the first op that produced it. For this, arguments
    with shards in several processes are gathered.
    """
    args, results = [array.words for array in args], [array.words for array in results]
    enabled = [name for name, on in (("nan", config.debug_nans), ("inf", config.debug_infs)) if on]
    results = [result for result in results if is_inexact(result.type.dtype) and result.addressable_shards]
    if not enabled or not results:
        return
    devices = results[0].sharding.devices
    checks = {"nan": _has_nan, "inf": _has_inf}
    for name, is_found in zip(enabled, _find(results, [checks[name] for name in enabled], devices), strict=True):
        if not is_found:
            continue
        culprit = _find_culprit(program, args, checks[name])
        if culprit is None:
            if _find(args, [checks[name]], devices) == [True]:
                continue  # an argument had it already
            raise FloatingPointError(f"{name} in a result of `{program.name}`")
        equation, operands = culprit
        operand_lines = "".join(f"\n  operand {i}: {_describe(x)}" for i, x in enumerate(operands))
        raise FloatingPointError(
            f"{name} in the result of `{equation.op.name}` at {equation.source}, in `{program.name}`.{operand_lines}"
        )


def _find(
    arrays: Sequence[ArrayImpl], checks: Sequence[Callable[[NumpyArray], bool]], devices: Sequence[Any]
) -> list[bool]:
    """Return, for each check, whether an array passes it, in any of the processes that own its devices."""
    elements = [_local_elements(array) for array in arrays if not array.is_deleted()]
    found = [any(map(check, elements)) for check in checks]
    mesh = process_mesh(tuple(devices))
    if mesh.device_count == 1:
        return found
    return [bool(column.any()) for column in gather_words(np.array(found, WORD), mesh).T]


def _find_culprit(program: Program, args: Sequence[ArrayImpl], is_bad: Callable[[NumpyArray], bool]) -> Any:
    """Return the first equation with a bad result, and its operands; None if the program cannot be evaluated again."""
    if any(array.is_deleted() or array.is_unreduced for array in args):
        return None
    try:
        again = drop_effects(lower_keys(inline(program)))
    except TypeError:  # the result of an effect cannot be reproduced
        return None
    with config.override("debug_nans", False), config.override("debug_infs", False):
        elements = [
            (array if array.is_readable else transfer(array, array.sharding.replicated)).numpy() for array in args
        ]
    return find_bad_equation(again, elements, is_bad)


def _local_elements(array: ArrayImpl) -> NumpyArray:
    """Return the elements that this process can read; for an unreduced array, the elements of its terms."""
    if array.is_readable:
        return array.numpy()
    return np.concatenate([shard.numpy().ravel() for shard in array.distinct_shards()])


def _has_nan(x: NumpyArray) -> bool:
    return is_inexact(x.dtype) and bool(np.isnan(x.astype(numpy_carrier(x.dtype))).any())


def _has_inf(x: NumpyArray) -> bool:
    return is_inexact(x.dtype) and bool(np.isinf(x.astype(numpy_carrier(x.dtype))).any())


def _describe(x: NumpyArray) -> str:
    if x.size <= 8:
        return f"{x.dtype}{list(x.shape)} {x.tolist()}"
    return f"{x.dtype}{list(x.shape)} from {x.min()} to {x.max()}"
