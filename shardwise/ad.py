"""jax.ad: markers for the gradients of arguments, in the vjp function's method `with_refs` and in its results."""

from shardwise.api.transformations.vjp_function import DidntWant, DontWant, GradRef, GradValue
from shardwise.base.lazy import set_public_names

__all__ = ["DidntWant", "DontWant", "GradRef", "GradValue"]

set_public_names(__name__, __all__)
