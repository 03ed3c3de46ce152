"""Conversions between typed keys and their words. The pass `transforms/lower_keys` removes both ops."""

from collections.abc import Sequence
from dataclasses import field
from typing import Any, final

from shardwise.compiler.dtypes import KEY_DTYPES, is_key, key_words
from shardwise.compiler.ir.op import BatchAxis, Op
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.reduce.broadcast import batch_dim_at
from shardwise.compiler.shardings.factors import FactorRule


@final
@record
class KeyData(Op):
    """Convert typed keys to their words, along a new last dim.

    `uses` marks that random numbers or new keys are derived from the words, for `debug_key_reuse`.
    """

    name = "key_data"
    accepts_keys = True
    uses: bool = field(default=False, repr=False)

    def out_type(self, key: ArrayType) -> ArrayType:
        if not is_key(key.dtype):
            raise TypeError(f"key_data: needs typed keys, not {key}")
        return key.physical

    def factors(self, key: ArrayType) -> FactorRule:
        words = key.physical.shape
        dims = tuple((dim,) for dim in range(len(words)))
        return FactorRule((dims[:-1],), (dims,), words, need_replication=frozenset([key.ndim]))

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        return self(*operands), dims[0]


@final
@record
class WrapKeyData(Op):
    """Convert words along the last dim to typed keys of a PRNG implementation."""

    name = "wrap_key_data"
    impl: str = field(default="threefry2x32", repr=False)

    def out_type(self, words: ArrayType) -> ArrayType:
        keys = ArrayType(words.shape[:-1], KEY_DTYPES[self.impl])
        if words != keys.physical:
            raise TypeError(
                f"wrap_key_data: a key of {self.impl} is {key_words(keys.dtype)} words along the last dim, "
                f"u32[…,{key_words(keys.dtype)}], not {words}"
            )
        return keys

    def factors(self, words: ArrayType) -> FactorRule:
        dims = tuple((dim,) for dim in range(words.ndim))
        return FactorRule((dims,), (dims[:-1],), words.shape, need_replication=frozenset([words.ndim - 1]))

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        return self(batch_dim_at(operands[0], dims[0], 0, axis.size)), 0
