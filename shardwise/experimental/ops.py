"""The building blocks of user-defined ops; `docs/own-ops.md` defines a complete one.

The module exports few names on purpose: the base class `Op` and the types of its rules' arguments and results
(`ArrayType`, `FactorRule`, `BatchAxis`, `LocalContext`, `Hlo`, `UndefinedPrimal`); `Elementwise`, the base class of
elementwise ops, which defines most rules; and the collectives that an op needs to communicate between shards. Rules can
call all functions of `shardwise.numpy` and `shardwise.lax`. Everything else in the compiler may change between
versions.
"""

from shardwise.base.lazy import set_public_names
from shardwise.compiler.ir.op import BatchAxis, Hlo, LocalContext, Op, UndefinedPrimal
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.collective.collectives import AllGather, AllReduce
from shardwise.compiler.ops.collective.take_window import TakeWindow
from shardwise.compiler.ops.elementwise.base import Elementwise
from shardwise.compiler.shardings.factors import FactorRule

__all__ = [
    "AllGather",
    "AllReduce",
    "ArrayType",
    "BatchAxis",
    "Elementwise",
    "FactorRule",
    "Hlo",
    "LocalContext",
    "Op",
    "TakeWindow",
    "UndefinedPrimal",
]


set_public_names(__name__, __all__)
