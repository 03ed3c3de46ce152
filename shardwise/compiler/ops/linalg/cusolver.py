"""Calls of cuSOLVER, cuBLAS and cuSPARSE that replace LAPACK's routines on GPUs.

ROCm's libraries have the same routines: the names of their call targets start with "hip" instead of "cu". The factors
may differ from LAPACK's in signs and phases, which are not unique in a decomposition.
"""

from collections.abc import Callable, Sequence
from typing import Any

from shardwise.compiler.ir.op import Hlo
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.linalg.xla_linalg import Attributes, char_attribute, flag, triangular_solve

PREFIXES = {"cuda": "cu", "rocm": "hip"}  # of call targets, by platform


def gpu_call(
    hlo: Hlo,
    name: str,
    operands: Sequence[Any],
    results: Sequence[ArrayType],
    batch: int,
    written: Sequence[tuple[int, int]],
    attributes: Attributes,
) -> list[Any]:
    """Lower a call of LAPACK's routine `name` to its GPU counterpart. The arguments are as in `lapack_call`."""
    if name == "trsm":
        return triangular_solve(hlo, operands, results, attributes)  # XLA calls cuBLAS
    special = {"gesdd": _singular_values, "gesvd": _singular_values, "gtsv": _tridiagonal_solve}
    if name in special:
        return special[name](hlo, operands, results, batch, attributes)
    if name not in _COUNTERPARTS:
        raise hlo.unsupported(f"LAPACK's {name} has no counterpart on GPUs")
    target, convert_attributes = _COUNTERPARTS[name]
    if name == "geev":
        target = f"hybrid_eig_{'comp' if operands[0].type.dtype.kind == 'c' else 'real'}"
    operand_layouts = [minor_to_major(x.type, batch) for x in operands]
    result_layouts = [minor_to_major(type, batch) for type in results]
    return hlo.custom_call(
        gpu_target(hlo, target),
        operands,
        results,
        convert_attributes(attributes),
        operand_layouts,
        result_layouts,
        written,
    )


def minor_to_major(type: ArrayType, batch: int, row_major: bool = False) -> tuple[int, ...]:
    """Return the memory layout of an operand: its dims from minor to major. Matrices are column-major by default."""
    dims = tuple(reversed(range(type.ndim)))
    return (dims[1], dims[0], *dims[2:]) if type.ndim == batch + 2 and not row_major else dims


def gpu_target(hlo: Hlo, name: str) -> str:
    """Return the full name of a call target: `cusolver_potrf_ffi` for `solver_potrf_ffi` on CUDA."""
    return PREFIXES[hlo.platform] + name


def _is_lower(attributes: Attributes) -> dict[str, str]:
    return {"lower": flag(attributes["uplo"] == char_attribute("L"))}


def _vectors(attributes: Attributes) -> dict[str, str]:
    sides = {side: flag(attributes[f"compute_{side}"] == char_attribute("V")) for side in ("left", "right")}
    return {**sides, "magma": '"auto"'}


# Routines with the same operands and results under another name → the call target without its prefix, and a function
# of the attributes.
_COUNTERPARTS: dict[str, tuple[str, Callable[[Attributes], dict[str, str]]]] = {
    "potrf": ("solver_potrf_ffi", _is_lower),
    "getrf": ("solver_getrf_ffi", lambda attributes: {}),
    "geqrf": ("solver_geqrf_ffi", lambda attributes: {}),
    "orgqr": ("solver_orgqr_ffi", lambda attributes: {}),
    "ormqr": ("solver_ormqr_ffi", dict),
    "syevd": ("solver_syevd_ffi", lambda attributes: {"algorithm": "0 : ui8", **_is_lower(attributes)}),
    "sytrd": ("solver_sytrd_ffi", _is_lower),
    "geev": ("hybrid_eig", _vectors),
}


def _singular_values(
    hlo: Hlo, operands: Sequence[Any], results: Sequence[ArrayType], batch: int, attributes: Attributes
) -> list[Any]:
    """Lower `gesdd` to cuSOLVER's gesvd, which requires at least as many rows as columns.

    A wide matrix is passed in row-major layout, which gesvd reads as the transpose.
    """
    a, values, u, vh, info = results
    rows, columns = a.shape[batch:]
    wide = rows < columns
    if attributes["mode"] == char_attribute("N"):
        size = min(rows, columns)
        u, vh = (a.with_shape((*a.shape[:batch], *shape)) for shape in ((rows, size), (size, columns)))
    types = (a, values, *((vh, u) if wide else (u, vh)), info)
    layouts = [minor_to_major(type, batch, row_major=wide) for type in (operands[0].type, *types)]
    options = {
        "compute_uv": flag(attributes["mode"] != char_attribute("N")),
        "full_matrices": flag(attributes["mode"] == char_attribute("A")),
        "transposed": flag(wide),
    }
    overwritten, singular_values, left, right, status = hlo.custom_call(
        gpu_target(hlo, "solver_gesvd_ffi"), operands, types, options, layouts[:1], layouts[1:], ((0, 0),)
    )
    return [overwritten, singular_values, *((right, left) if wide else (left, right)), status]


def _tridiagonal_solve(
    hlo: Hlo, operands: Sequence[Any], results: Sequence[ArrayType], batch: int, attributes: Attributes
) -> list[Any]:
    """Lower `gtsv` to cuSPARSE's solver, which does not overwrite the diagonals and does not report failures."""
    layouts = [minor_to_major(x.type, batch) for x in operands]
    (x,) = hlo.custom_call(
        gpu_target(hlo, "sparse_gtsv2_ffi"), operands, results[3:4], {}, layouts, layouts[3:], ((0, 3),)
    )
    return [*operands[:3], x, hlo.constant(0, results[4])]
