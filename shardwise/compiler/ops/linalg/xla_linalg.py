"""XLA's own decompositions, for platforms that have neither LAPACK nor a counterpart of cuSOLVER, such as TPUs.

XLA has ops for Cholesky decompositions and triangular solves, and expands the custom calls `Qr`,
`ProductOfElementaryHouseholderReflectors` and `Eigh` on every platform. `xla_lu.py` has LU decompositions.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shardwise.compiler.ir.op import Hlo
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.linalg.xla_lu import lower_lu

Attributes = Mapping[str, str]

# Parameters of XLA's Jacobi iteration: the number of sweeps and the tolerance, as in JAX.
_EIGH_SWEEPS, _EIGH_TOLERANCE = 100, 1e-6


def char_attribute(text: str) -> str:
    """Format a character that selects a variant of a routine as an attribute of its custom call."""
    return f"{ord(text)} : ui8"


def flag(value: bool) -> str:
    """Format a bool as an attribute."""
    return str(value).lower()


def xla_call(
    hlo: Hlo, name: str, operands: Sequence[Any], results: Sequence[ArrayType], attributes: Attributes
) -> list[Any]:
    """Lower a call of LAPACK's routine `name` to XLA's own counterpart. The arguments are as in `lapack_call`.

    Raises:
        UnsupportedError: if XLA has none.
    """
    if name not in _COUNTERPARTS:
        raise hlo.unsupported(f"XLA has no counterpart of LAPACK's {name}")
    return _COUNTERPARTS[name](hlo, operands, results, attributes)


def triangular_solve(
    hlo: Hlo, operands: Sequence[Any], results: Sequence[ArrayType], attributes: Attributes
) -> list[Any]:
    """Lower `trsm`."""
    transposes = {char_attribute("N"): "NO_TRANSPOSE", char_attribute("T"): "TRANSPOSE", char_attribute("C"): "ADJOINT"}
    text = (
        f"left_side = {flag(attributes['side'] == char_attribute('L'))}, "
        f"lower = {flag(attributes['uplo'] == char_attribute('L'))}, "
        f"unit_diagonal = {flag(attributes['diag'] == char_attribute('U'))}, "
        f"transpose_a = #stablehlo<transpose {transposes[attributes['trans_x']]}>"
    )
    return [hlo.op("stablehlo.triangular_solve", operands, results[0], text)]


def _cholesky(hlo: Hlo, operands: Sequence[Any], results: Sequence[ArrayType], attributes: Attributes) -> list[Any]:
    """Lower `potrf`. A matrix that is not positive definite has NaN in its factor; the status is always 0."""
    lower = flag(attributes["uplo"] == char_attribute("L"))
    return [hlo.op("stablehlo.cholesky", operands, results[0], f"lower = {lower}"), hlo.constant(0, results[1])]


def _lu(hlo: Hlo, operands: Sequence[Any], results: Sequence[ArrayType], attributes: Attributes) -> list[Any]:
    """Lower `getrf`. The status is always 0."""
    return [*lower_lu(hlo, operands[0], results[1]), hlo.constant(0, results[2])]


def _qr(hlo: Hlo, operands: Sequence[Any], results: Sequence[ArrayType], attributes: Attributes) -> list[Any]:
    """Lower `geqrf`."""
    return hlo.many("stablehlo.custom_call", operands, results, _target("Qr"))


def _householder_product(
    hlo: Hlo, operands: Sequence[Any], results: Sequence[ArrayType], attributes: Attributes
) -> list[Any]:
    """Lower `orgqr`."""
    return hlo.many("stablehlo.custom_call", operands, results, _target("ProductOfElementaryHouseholderReflectors"))


def _eigh(hlo: Hlo, operands: Sequence[Any], results: Sequence[ArrayType], attributes: Attributes) -> list[Any]:
    """Lower `syevd`, with eigenvalues in ascending order. The status is always 0."""
    lower = int(attributes["uplo"] == char_attribute("L"))
    config = f'backend_config = "{lower},1,{_EIGH_SWEEPS},{_EIGH_TOLERANCE}"'
    vectors, values = hlo.many("stablehlo.custom_call", operands, results[:2], f"{_target('Eigh')}, {config}")
    return [vectors, values, hlo.constant(0, results[2])]


def _target(name: str) -> str:
    return f'call_target_name = "{name}", api_version = 1 : i32'


_Lowering = Callable[[Hlo, Sequence[Any], Sequence[ArrayType], Attributes], list[Any]]
_COUNTERPARTS: dict[str, _Lowering] = {
    "geqrf": _qr,
    "getrf": _lu,
    "orgqr": _householder_product,
    "potrf": _cholesky,
    "syevd": _eigh,
    "trsm": triangular_solve,
}
