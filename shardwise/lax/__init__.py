"""Functions close to the ops."""

from typing import NoReturn

from shardwise.api.placement import with_sharding_constraint
from shardwise.errors import not_here
from shardwise.lax.gradient import stop_gradient

__all__ = ["stop_gradient", "with_sharding_constraint"]


def __getattr__(name: str) -> NoReturn:
    raise not_here("shardwise.lax", name, __all__)
