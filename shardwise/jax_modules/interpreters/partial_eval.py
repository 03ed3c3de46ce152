"""jax.interpreters.partial_eval: which results of a function are known, if only some of its arguments are."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

from shardwise.base.missing_names import report_missing
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.ir.dispatch import open_frames
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.trace.build import build
from shardwise.compiler.trace.tracer import Frame
from shardwise.extend.linear_util import WrappedFun

__all__ = ["PartialVal", "trace_to_jaxpr_nounits"]  # Flax


class PartialVal(NamedTuple):
    """A value that is known (`aval` is None), or only its type."""

    aval: ArrayType | None
    const: Any

    @staticmethod
    def known(const: object) -> "PartialVal":
        """Return a known value."""
        return PartialVal(None, const)

    @staticmethod
    def unknown(aval: ArrayType) -> "PartialVal":
        """Return a value of which only the type is known."""
        return PartialVal(aval, None)


def trace_to_jaxpr_nounits(
    fun: WrappedFun, pvals: Sequence[PartialVal], instantiate: bool | Sequence[bool] = False
) -> tuple[None, list[PartialVal], None]:
    """Run a function with some known arguments; what depends only on these is computed.

    Returns:
        None, the results as PartialVals, and None: Flax reads the results alone.
    """
    results: list[PartialVal] = []

    def partially_known(*tracers: Array) -> list[Any]:
        rest = iter(tracers)
        leaves = [value.const if value.aval is None else next(rest) for value in pvals]
        unknown = []
        frame = open_frames()[-1]
        for x in fun.call_wrapped(*leaves):
            if frame.owns(x):  # tracers of enclosing functions are known
                results.append(PartialVal.unknown(x.type))
                unknown.append(x)
            else:
                results.append(PartialVal.known(x))
        return unknown

    def partial_frame(name: str, stages_all: bool, axes: Mapping[Hashable, int], tracked: frozenset[str]) -> Frame:
        return Frame(name, False, axes, tracked)  # ops on known values run

    types = [value.aval for value in pvals if value.aval is not None]
    build(partially_known, types, fun.__name__, frame_type=partial_frame)
    return None, results, None


report_missing(__name__, __all__)
