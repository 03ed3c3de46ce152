"""LAPACK's routines by name: as custom calls of a compiled program, and as functions of NumPy arrays.

Both call the same library, so that results agree also in signs and phases that a decomposition does not determine.
`cusolver.py` has the counterparts on GPUs.
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

scipy = lazy_module("scipy")  # its import takes a third of a second, and few programs need it

_PREFIXES = {np.dtype(dtype): prefix for dtype, prefix in (("f4", "s"), ("f8", "d"), ("c8", "c"), ("c16", "z"))}
# Complex counterparts of routines for symmetric or orthogonal matrices: those for Hermitian or unitary ones.
_COMPLEX_NAMES = {"syevd": "heevd", "sytrd": "hetrd", "orgqr": "ungqr", "ormqr": "unmqr"}

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

    `written` has pairs of a result and the operand that it overwrites. LAPACK's matrices are column-major.
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


def nan_on_failure(hlo: Hlo, info: Any, *results: Any) -> tuple[Any, ...]:
    """Replace the results by NaN for each matrix for which `info`, LAPACK's status, is not 0."""
    succeeded = lower_compare(hlo, "EQ", info, hlo.constant(0, info.type))
    return tuple(_nan_unless(hlo, succeeded, x) for x in results)


def _nan_unless(hlo: Hlo, succeeded: Any, x: Any) -> Any:
    dims = ", ".join(map(str, range(succeeded.type.ndim)))
    mask_type = ArrayType(x.type.shape, np.bool_)
    attributes = f"broadcast_dimensions = array<i64{': ' if dims else ''}{dims}>"
    mask = hlo.op("stablehlo.broadcast_in_dim", (succeeded,), mask_type, attributes)
    nan = complex(np.nan, np.nan) if x.type.dtype.kind == "c" else np.nan
    return hlo.op("stablehlo.select", (mask, x, hlo.constant(nan, x.type)), x.type)


def numpy_nan_unless(succeeded: bool, *results: Any) -> tuple[Any, ...]:
    """Replace the results, which are NumPy arrays, by NaN unless the routine succeeded."""
    return tuple(x if succeeded else np.full(x.shape, np.nan * (1 + 1j if x.dtype.kind == "c" else 1)) for x in results)


def mask_triangle(hlo: Hlo, x: Any, direction: str) -> Any:
    """Keep one triangle of each matrix with its diagonal ("GE": the lower one), and set the rest to zero."""
    index = ArrayType(x.type.shape, np.int32)
    rows, columns = (
        hlo.op("stablehlo.iota", (), index, f"iota_dimension = {x.type.ndim - from_end} : i64") for from_end in (2, 1)
    )
    return hlo.op(
        "stablehlo.select", (lower_compare(hlo, direction, rows, columns), x, hlo.constant(0, x.type)), x.type
    )
