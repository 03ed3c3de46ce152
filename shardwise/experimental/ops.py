"""What an op that is defined outside of this package is made of: `docs/own-ops.md` writes one, whole.

These names are few on purpose. The base and the types that its rules are handed and return have to be here, or no op
could be written: `Op`, `ArrayType`, `FactorRule`, `BatchAxis`, `Shard`, `Hlo`, `Unknown`. `Elementwise` is the family
that fills in most rules, and most ops are of it. The collectives are those that an op needs to reach across cuts; what
else its rules compute, the functions of `shardwise.numpy` and `shardwise.lax` do, for they work wherever rules run.
Everything else in the compiler may change from one version to the next.
"""

from typing import NoReturn

from shardwise.compiler.ir.op import BatchAxis, Hlo, Op, Shard, Unknown
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.collective.collectives import AllGather, AllReduce
from shardwise.compiler.ops.collective.take_window import TakeWindow
from shardwise.compiler.ops.elementwise.base import Elementwise
from shardwise.compiler.shardings.factors import FactorRule
from shardwise.errors import not_here

__all__ = [
    "AllGather",
    "AllReduce",
    "ArrayType",
    "BatchAxis",
    "Elementwise",
    "FactorRule",
    "Hlo",
    "Op",
    "Shard",
    "TakeWindow",
    "Unknown",
]


def __getattr__(name: str) -> NoReturn:
    raise not_here("shardwise.experimental.ops", name, __all__)
