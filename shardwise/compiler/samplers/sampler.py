"""Sampler: the base class of ops that are defined by a program of other ops, which runs on one device's shard.

A rejection loop in such a program ends when the elements of this shard are accepted; no iteration waits for another
device.
"""

from typing import Any

from shardwise.base.caches import registered_cache
from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.op import Hlo, HloValue, NumpyArray, Op, ignore_float_errors
from shardwise.compiler.ir.program import Program
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.trace.build import rewrite
from shardwise.compiler.transforms.lower_keys import lower_keys


class Sampler(Op):
    """An op that samples by a program of other ops, which runs on one device's shards."""

    def sample(self, *operands: Any) -> list[Any]:
        """Compute the results by applying other ops."""
        raise self.missing_rule("sample")

    def lower(self, hlo: Hlo, *operands: HloValue) -> Any:
        results = hlo.program(sampling_program(self, tuple(x.type.strong() for x in operands)), operands)
        return results[0] if self.single else results

    @ignore_float_errors
    def reference(self, *operands: NumpyArray) -> Any:
        results = evaluate(sampling_program(self, tuple(ArrayType(x.shape, x.dtype) for x in operands)), operands)
        return results[0] if self.single else results


@registered_cache(maxsize=4096)
def sampling_program(op: Sampler, types: tuple[ArrayType, ...]) -> Program:
    """Return the program of a sampler for operands of these types, on the words of keys."""
    return lower_keys(rewrite(op.name, types, op.sample))
