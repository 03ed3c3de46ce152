"""LAPACK's routines on GPUs: what cuSOLVER and its kin call them, and what they take and give otherwise.

Factors come out with other signs and phases than LAPACK's: mathematics leaves these free.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shardwise.compiler.ir.op import Hlo
from shardwise.compiler.ir.types import ArrayType

Attributes = Mapping[str, str]


def char_attribute(text: str) -> str:
    """A letter that chooses a variant of a routine, as its calls hold it."""
    return f"{ord(text)} : ui8"


def gpu_call(
    hlo: Hlo,
    name: str,
    operands: Sequence[Any],
    results: Sequence[ArrayType],
    batch: int,
    written: Sequence[tuple[int, int]],
    attributes: Attributes,
) -> list[Any]:
    """A routine's results on a GPU, given what LAPACK's routine of this name is given."""
    special = {"gesdd": _singular_values, "trsm": _triangular_solve, "gtsv": _tridiagonal_solve}
    if name in special:
        return special[name](hlo, operands, results, batch, attributes)
    if name not in _SAME:
        raise NotImplementedError(
            f"LAPACK's {name} has no counterpart on GPUs: move the array with `device_put(x, devices('cpu')[0])`, and "
            "compute there"
        )
    target, translated = _SAME[name]
    if name == "geev":
        target = f"cuhybrid_eig_{'comp' if operands[0].type.dtype.kind == 'c' else 'real'}"
    taken, given = ([minor_to_major(type, batch) for type in types] for types in ([x.type for x in operands], results))
    return hlo.custom_call(target, operands, results, translated(attributes), taken, given, written)


def minor_to_major(type: ArrayType, batch: int, by_rows: bool = False) -> tuple[int, ...]:
    """The dims of an array from minor to major; matrices lie column by column, unless `by_rows`."""
    rows = tuple(reversed(range(type.ndim)))
    return (rows[1], rows[0], *rows[2:]) if type.ndim == batch + 2 and not by_rows else rows


def _flag(value: bool) -> str:
    return str(value).lower()


def _is_lower(attributes: Attributes) -> dict[str, str]:
    return {"lower": _flag(attributes["uplo"] == char_attribute("L"))}


def _vectors(attributes: Attributes) -> dict[str, str]:
    sides = {side: _flag(attributes[f"compute_{side}"] == char_attribute("V")) for side in ("left", "right")}
    return {**sides, "magma": '"auto"'}


# Routines that take and give the same there, by another name.
_SAME: dict[str, tuple[str, Callable[[Attributes], dict[str, str]]]] = {
    "potrf": ("cusolver_potrf_ffi", _is_lower),
    "getrf": ("cusolver_getrf_ffi", lambda attributes: {}),
    "geqrf": ("cusolver_geqrf_ffi", lambda attributes: {}),
    "orgqr": ("cusolver_orgqr_ffi", lambda attributes: {}),
    "ormqr": ("cusolver_ormqr_ffi", dict),
    "syevd": ("cusolver_syevd_ffi", lambda attributes: {"algorithm": "0 : ui8", **_is_lower(attributes)}),
    "sytrd": ("cusolver_sytrd_ffi", _is_lower),
    "geev": ("cuhybrid_eig", _vectors),
}


def _singular_values(
    hlo: Hlo, operands: Sequence[Any], results: Sequence[ArrayType], batch: int, attributes: Attributes
) -> list[Any]:
    """cuSOLVER's gesvd takes no matrix that is wider than high: of such, it gets the transpose, as rows of columns."""
    a, values, u, vh, failed = results
    rows, columns = a.shape[batch:]
    wide = rows < columns
    if attributes["mode"] == char_attribute("N"):
        shared = min(rows, columns)
        u, vh = (a.with_shape((*a.shape[:batch], *shape)) for shape in ((rows, shared), (shared, columns)))
    given = (a, values, *((vh, u) if wide else (u, vh)), failed)
    layouts = [minor_to_major(type, batch, by_rows=wide) for type in (operands[0].type, *given)]
    options = {
        "compute_uv": _flag(attributes["mode"] != char_attribute("N")),
        "full_matrices": _flag(attributes["mode"] == char_attribute("A")),
        "transposed": _flag(wide),
    }
    found = hlo.custom_call("cusolver_gesvd_ffi", operands, given, options, layouts[:1], layouts[1:], ((0, 0),))
    return [*found[:2], *(reversed(found[2:4]) if wide else found[2:4]), found[4]]


def _triangular_solve(
    hlo: Hlo, operands: Sequence[Any], results: Sequence[ArrayType], batch: int, attributes: Attributes
) -> list[Any]:
    """XLA's own op, which calls cuBLAS."""
    ways = {char_attribute("N"): "NO_TRANSPOSE", char_attribute("T"): "TRANSPOSE", char_attribute("C"): "ADJOINT"}
    text = (
        f"left_side = {_flag(attributes['side'] == char_attribute('L'))}, "
        f"lower = {_flag(attributes['uplo'] == char_attribute('L'))}, "
        f"unit_diagonal = {_flag(attributes['diag'] == char_attribute('U'))}, "
        f"transpose_a = #stablehlo<transpose {ways[attributes['trans_x']]}>"
    )
    return [hlo.op("stablehlo.triangular_solve", operands, results[0], text)]


def _tridiagonal_solve(
    hlo: Hlo, operands: Sequence[Any], results: Sequence[ArrayType], batch: int, attributes: Attributes
) -> list[Any]:
    """cuSPARSE's solver says nothing of failures, and leaves the diagonals as they are."""
    layouts = [minor_to_major(x.type, batch) for x in operands]
    (found,) = hlo.custom_call("cusparse_gtsv2_ffi", operands, results[3:4], {}, layouts, layouts[3:], ((0, 3),))
    return [*operands[:3], found, hlo.constant(0, results[4])]
