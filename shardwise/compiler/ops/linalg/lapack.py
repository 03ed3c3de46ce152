"""LAPACK's routines by name: as calls of a compiled program, and as functions of numpy arrays.

Both are the same library, so that signs and phases that mathematics leaves free come out alike. What these routines
are on GPUs is said in `cusolver.py`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from shardwise.compiler.dtypes import DType
from shardwise.compiler.ir.op import Hlo
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.base import DtypeSet
from shardwise.compiler.ops.elementwise.select import lower_compare
from shardwise.compiler.ops.linalg.cusolver import gpu_call, minor_to_major
from shardwise.lazy import lazy_module

scipy = lazy_module("scipy")  # a third of a second that few programs need

_LETTERS = {np.dtype(letter): name for letter, name in (("f4", "s"), ("f8", "d"), ("c8", "c"), ("c16", "z"))}
# What is symmetric and orthogonal among real matrices is Hermitian and unitary among complex ones.
_COMPLEX = {"syevd": "heevd", "sytrd": "hetrd", "orgqr": "ungqr", "ormqr": "unmqr"}

LAPACK_DTYPES = DtypeSet("f32, f64, c64 or c128", lambda dtype: dtype in _LETTERS)


def routine_name(name: str, dtype: DType) -> str:
    """A routine's name for a dtype: `potrf` of f32 is `spotrf`."""
    return _LETTERS[dtype] + (_COMPLEX.get(name, name) if dtype.kind == "c" else name)


def numpy_routine(name: str, dtype: DType) -> Any:
    """A routine as a function of numpy arrays."""
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
    """A routine in a compiled program, once for each index of the first `batch` dims.

    `written`: pairs of a result and the operand in whose memory the routine makes it. LAPACK's matrices lie column by
    column.
    """
    if hlo.platform == "gpu":
        return gpu_call(hlo, name, operands, results, batch, written, attributes)
    return hlo.custom_call(
        f"lapack_{routine_name(name, operands[0].type.dtype)}_ffi",
        operands,
        results,
        attributes,
        [minor_to_major(x.type, batch) for x in operands],
        [minor_to_major(type, batch) for type in results],
        written,
    )


def nan_on_failure(hlo: Hlo, failed: Any, *results: Any) -> tuple[Any, ...]:
    """Results, with NaN for each matrix whose number in `failed`, what a routine says of itself, is not 0."""
    worked = lower_compare(hlo, "EQ", failed, hlo.constant(0, failed.type))
    return tuple(_chosen(hlo, worked, x) for x in results)


def _chosen(hlo: Hlo, worked: Any, x: Any) -> Any:
    dims = ", ".join(map(str, range(worked.type.ndim)))
    where = ArrayType(x.type.shape, np.bool_)
    attributes = f"broadcast_dimensions = array<i64{': ' if dims else ''}{dims}>"
    spread = hlo.op("stablehlo.broadcast_in_dim", (worked,), where, attributes)
    nan = complex(np.nan, np.nan) if x.type.dtype.kind == "c" else np.nan
    return hlo.op("stablehlo.select", (spread, x, hlo.constant(nan, x.type)), x.type)


def numpy_nan_unless(worked: bool, *results: Any) -> tuple[Any, ...]:
    """As `nan_on_failure`, of numpy arrays."""
    return tuple(x if worked else np.full(x.shape, np.nan * (1 + 1j if x.dtype.kind == "c" else 1)) for x in results)


def mask_triangle(hlo: Hlo, x: Any, direction: str) -> Any:
    """Of each matrix what is on one side of its diagonal, with it ("GE": the lower side), and zeros elsewhere."""
    index = ArrayType(x.type.shape, np.int32)
    rows, columns = (
        hlo.op("stablehlo.iota", (), index, f"iota_dimension = {x.type.ndim - place} : i64") for place in (2, 1)
    )
    return hlo.op(
        "stablehlo.select", (lower_compare(hlo, direction, rows, columns), x, hlo.constant(0, x.type)), x.type
    )
