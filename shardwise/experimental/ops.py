"""The building blocks of user-defined ops; `docs/own-ops.md` defines a complete one.

The module exports few names on purpose: the base class `Op` and the types of its rules' arguments and results
(`ArrayType`, `FactorRule`, `BatchAxis`, `LocalContext`, `Hlo`, `UndefinedPrimal`); `Elementwise`, the base class of
elementwise ops, which defines most rules; and the collectives that an op needs to communicate between shards. Rules can
call all functions of `shardwise.numpy` and `shardwise.lax`. Everything else in the compiler may change between
versions.

The public names are listed in `ops.pyi`.
"""

from shardwise.base.lazy import lazy_namespace

__all__, __getattr__, __dir__ = lazy_namespace(__name__, __file__)
