"""jax._src.numpy.einsum: a path of `opt_einsum`, and its evaluation step by step."""

from collections.abc import Callable, Sequence
from typing import Any

from shardwise.api.meshes.out_sharding import constrain_sharding
from shardwise.base.lazy import lazy_module
from shardwise.base.missing_names import report_missing
from shardwise.dtypes import result_type
from shardwise.lax.dot_products import dot_general
from shardwise.numpy.einsum import einsum
from shardwise.typing import DTypeLike, OutSharding

opt_einsum = lazy_module("opt_einsum")

__all__ = ["_default_poly_einsum_handler", "_einsum"]  # AQT, Haliax

Contraction = tuple[Sequence[int], frozenset[str], str]


def _default_poly_einsum_handler(*operands: Any, **options: Any) -> tuple[list[Any], Any]:
    """Return the operands and the contractions of an equation, as `opt_einsum.contract_path` does."""
    arrays, contractions = opt_einsum.contract_path(*operands, **options)
    return list(arrays), contractions


def _einsum(
    operands: Sequence[Any],
    contractions: Sequence[Contraction],
    precision: Any,
    preferred_element_type: DTypeLike | None,
    _dot_general: Callable[..., Any] = dot_general,
    out_sharding: OutSharding = None,
) -> Any:
    """Evaluate contractions, each of which pops its operands and appends its result.

    Args:
        operands: the arrays.
        contractions: the positions of the operands, the names that are summed over, and the equation.
        precision: the precision of the products.
        preferred_element_type: the dtype of the products; by default the promoted dtype of all operands.
        _dot_general: the function of the products.
        out_sharding: the sharding to constrain the result to.
    """
    dtype = result_type(*operands) if preferred_element_type is None else preferred_element_type
    remaining = list(operands)
    for positions, _, equation in contractions:
        terms = [remaining.pop(position) for position in positions]
        remaining.append(
            einsum(equation, *terms, precision=precision, preferred_element_type=dtype, _dot_general=_dot_general)
        )
    (result,) = remaining
    return constrain_sharding(result, out_sharding)


report_missing(__name__, __all__)
