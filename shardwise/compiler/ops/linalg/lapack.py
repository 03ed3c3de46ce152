"""LAPACK's routines by name, as custom calls of a compiled program and as functions of NumPy arrays.

Both call the same library, so that results also agree in signs and phases, which are not unique in a decomposition.
`cusolver.py` has the counterparts on GPUs, and `xla_linalg.py` those on other platforms.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from shardwise.base._jaxlib import PERTURBED_SOLVE, jaxlib_version
from shardwise.base.lazy import lazy_module
from shardwise.compiler.dtypes import DType
from shardwise.compiler.ir.op import Hlo, HloValue, NumpyArray
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.arithmetic import Add
from shardwise.compiler.ops.elementwise.base import DtypeSet
from shardwise.compiler.ops.elementwise.select import lower_compare
from shardwise.compiler.ops.indexing.dynamic_slice import DynamicSlice, DynamicUpdateSlice
from shardwise.compiler.ops.linalg.cusolver import PREFIXES, gpu_call, gpu_target, minor_to_major
from shardwise.compiler.ops.linalg.xla_linalg import xla_call

scipy = lazy_module("scipy")  # importing scipy.linalg takes 280 ms, and only `reference` needs it

_PREFIXES = {np.dtype(dtype): prefix for dtype, prefix in (("f4", "s"), ("f8", "d"), ("c8", "c"), ("c16", "z"))}
# Routines for symmetric or orthogonal matrices → their complex counterparts, for Hermitian or unitary matrices.
_COMPLEX_NAMES = {"syevd": "heevd", "sytrd": "hetrd", "orgqr": "ungqr", "ormqr": "unmqr"}

_INDEX = ArrayType((), np.int32)

# jaxlib estimates the flops of a routine as at most this multiple of rows · columns · min(rows, columns).
_MOST_FLOPS_PER_PRODUCT = 30
_FLOPS_OF_ONE_TASK = 200_000  # above this, jaxlib divides a batch into tasks

LAPACK_DTYPES = DtypeSet("f32, f64, c64 or c128", lambda dtype: dtype in _PREFIXES)


def routine_name(name: str, dtype: DType) -> str:
    """Return LAPACK's name of a routine for a dtype: `potrf` of f32 is `spotrf`."""
    return _PREFIXES[dtype] + (_COMPLEX_NAMES.get(name, name) if dtype.kind == "c" else name)


def numpy_routine(name: str, dtype: DType) -> Any:
    """Return a routine as SciPy's function of NumPy arrays."""
    return getattr(scipy.linalg.lapack, routine_name(name, dtype))


def lapack_call(
    hlo: Hlo,
    name: str,
    operands: Sequence[Any],
    results: Sequence[ArrayType],
    batch: int,
    written: Sequence[tuple[int, int]] = (),
    **attributes: str,
) -> list[Any]:
    """Lower a call of a routine, which runs once for each index of the first `batch` dims.

    `written` are pairs (result, operand that it overwrites). LAPACK's matrices are column-major.

    Raises:
        UnsupportedError: if the platform has no counterpart of the routine.
    """
    if hlo.platform in PREFIXES:
        return gpu_call(hlo, name, operands, results, batch, written, attributes)
    if hlo.platform != "cpu":
        return xla_call(hlo, name, operands, results, attributes)

    def call(operands: Sequence[Any], results: Sequence[ArrayType], batch: int) -> list[Any]:
        return hlo.custom_call(
            f"lapack_{routine_name(name, operands[0].type.dtype)}_ffi",
            operands,
            results,
            attributes,
            [minor_to_major(x.type, batch) for x in operands],
            [minor_to_major(type, batch) for type in results],
            written,
        )

    matrices = math.prod(operands[0].type.shape[:batch])
    at_once = matrices_at_once([type.shape[batch:] for type in (*(x.type for x in operands), *results)])
    if at_once is None or matrices <= at_once:
        return call(operands, results, batch)
    return _call_for_each_sub_batch(hlo, call, operands, results, batch, at_once)


def perturbed_tridiagonal_solve(hlo: Hlo, operands: Sequence[Any], result: ArrayType, batch: int) -> Any:
    """Lower a call of jaxlib's solver of tridiagonal systems that perturbs tiny pivots."""
    if hlo.platform != "cpu" and hlo.platform not in PREFIXES:
        raise hlo.unsupported("jaxlib's solver with perturbed pivots exists for CPUs and GPUs")
    (x,) = hlo.custom_call(
        PERTURBED_SOLVE if hlo.platform == "cpu" else gpu_target(hlo, "_tridiagonal_solve_perturbed"),
        operands,
        [result],
        {},
        [minor_to_major(x.type, batch) for x in operands],
        [minor_to_major(result, batch)],
    )
    return x


def _divides_batches() -> bool:
    """Return whether jaxlib divides a large batch into tasks, as versions before 0.12 do.

    The tasks run on the thread pool on which the devices run, and jaxlib waits for them. If the other threads of the
    pool wait in a collective for this device, no thread is left for the tasks, and the program deadlocks. A single
    device can deadlock too: XLA runs independent factorizations concurrently, and all threads may wait for tasks.
    """
    major, minor, *_ = jaxlib_version().split(".")
    return (int(major), int(minor)) < (0, 12)


def matrices_at_once(core_shapes: Sequence[tuple[int, ...]]) -> int | None:
    """Return how many matrices one call of a routine factors on CPU, of the batch of a loop; None for any number.

    This is how many jaxlib before 0.12 factors in the calling thread, without tasks.

    Args:
        core_shapes: the core dims of the operands and the results.
    """
    if not _divides_batches():
        return None
    flops = max(rows * columns * min(rows, columns) for rows, columns, *_ in ((*core, 1, 1) for core in core_shapes))
    if not flops:  # matrices without elements
        return None
    return max(1, (_FLOPS_OF_ONE_TASK - 1) // (_MOST_FLOPS_PER_PRODUCT * flops))


def _call_for_each_sub_batch(
    hlo: Hlo,
    call: Callable[[Sequence[Any], Sequence[ArrayType], int], list[Any]],
    operands: Sequence[Any],
    results: Sequence[ArrayType],
    batch: int,
    size: int,
) -> list[Any]:
    """Lower a loop that calls a routine on `size` matrices at a time. The last sub-batch may overlap the previous."""
    matrices = math.prod(operands[0].type.shape[:batch])

    def flat(type: ArrayType, count: int) -> ArrayType:
        return type.with_shape((count, *type.shape[batch:]))

    zero, step, count = (hlo.constant(number, _INDEX) for number in (0, size, matrices))
    operands = [hlo.op("stablehlo.reshape", (x,), flat(x.type, matrices)) for x in operands]
    sub_results = [flat(type, size) for type in results]

    def has_more(state: Sequence[Any]) -> Any:
        return lower_compare(hlo, "LT", state[0], count)

    def factor_sub_batch(state: Sequence[Any]) -> list[Any]:
        first, *so_far = state
        starts = [[first, *[zero] * (x.type.ndim - 1)] for x in (*operands, *so_far)]
        parts = [
            DynamicSlice((size, *x.type.shape[1:])).lower(hlo, x, *start)
            for x, start in zip(operands, starts, strict=False)
        ]
        factored = [
            DynamicUpdateSlice().lower(hlo, x, part, *start)
            for x, part, start in zip(so_far, call(parts, sub_results, 1), starts[len(parts) :], strict=True)
        ]
        return [Add().lower(hlo, first, step), *factored]

    empty = [hlo.constant(0, flat(type, matrices)) for type in results]
    _, *factored = hlo.loop([zero, *empty], has_more, factor_sub_batch)
    return [hlo.op("stablehlo.reshape", (x,), type) for x, type in zip(factored, results, strict=True)]


def nan_on_failure(hlo: Hlo, info: HloValue, *results: HloValue) -> tuple[Any, ...]:
    """Replace the results by NaN for each matrix whose `info`, LAPACK's status, is not 0."""
    succeeded = lower_compare(hlo, "EQ", info, hlo.constant(0, info.type))
    return tuple(_nan_unless(hlo, succeeded, x) for x in results)


def _nan_unless(hlo: Hlo, succeeded: HloValue, x: HloValue) -> Any:
    dims = ", ".join(map(str, range(succeeded.type.ndim)))
    mask_type = ArrayType(x.type.shape, np.bool_)
    attributes = f"broadcast_dimensions = array<i64{': ' if dims else ''}{dims}>"
    mask = hlo.op("stablehlo.broadcast_in_dim", (succeeded,), mask_type, attributes)
    nan = complex(np.nan, np.nan) if x.type.dtype.kind == "c" else np.nan
    return hlo.op("stablehlo.select", (mask, x, hlo.constant(nan, x.type)), x.type)


def numpy_nan_unless(succeeded: bool, *results: NumpyArray) -> tuple[Any, ...]:
    """Replace the results, which are NumPy arrays, by NaN unless the routine succeeded."""
    return tuple(x if succeeded else np.full(x.shape, np.nan * (1 + 1j if x.dtype.kind == "c" else 1)) for x in results)


def mask_triangle(hlo: Hlo, x: HloValue, direction: str) -> Any:
    """Keep one triangle of each matrix with its diagonal ("GE" is the lower one), and set the rest to zero."""
    index = ArrayType(x.type.shape, np.int32)
    rows, columns = (
        hlo.op("stablehlo.iota", (), index, f"iota_dimension = {x.type.ndim - from_end} : i64") for from_end in (2, 1)
    )
    return hlo.op(
        "stablehlo.select", (lower_compare(hlo, direction, rows, columns), x, hlo.constant(0, x.type)), x.type
    )
