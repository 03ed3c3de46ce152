"""jax.ref: mutable references to arrays."""

from shardwise.api.ref import (
    AbstractRef,
    Ref,
    addupdate,
    empty_ref,
    free_ref,
    freeze,
    get,
    new_ref,
    set,
    swap,
)
from shardwise.base.lazy import set_public_names

__all__ = ["AbstractRef", "Ref", "addupdate", "empty_ref", "free_ref", "freeze", "get", "new_ref", "set", "swap"]

set_public_names(__name__, __all__)
