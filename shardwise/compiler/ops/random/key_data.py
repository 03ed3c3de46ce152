"""Conversions between typed keys and their words. The pass `transforms/lower_keys` removes both ops."""

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from shardwise.compiler.dtypes import KEY, is_key
from shardwise.compiler.ir.op import BatchAxis, Op
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.reduce.broadcast import batch_dim_at


@final
@record
class KeyData(Op):
    """Convert typed keys to their two words, along a new last dim."""

    name = "key_data"
    accepts_keys = True

    def out_type(self, key: ArrayType) -> ArrayType:
        if not is_key(key.dtype):
            raise TypeError(f"key_data: needs typed keys, not {key}")
        return key.physical

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        return self(*operands), dims[0]


@final
@record
class WrapKeyData(Op):
    """Convert pairs of words along the last dim to typed keys."""

    name = "wrap_key_data"

    def out_type(self, words: ArrayType) -> ArrayType:
        if words.dtype != np.uint32 or words.shape[-1:] != (2,):
            raise TypeError(f"wrap_key_data: a key is two words along the last dim, u32[…,2], not {words}")
        return ArrayType(words.shape[:-1], KEY)

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        return self(batch_dim_at(operands[0], dims[0], 0, axis.size)), 0
