"""jax.extend.core.primitives: the primitives of Shardwise's ops under JAX's names, such as `exp_p` and `jit_p`."""

from typing import Any

from shardwise.api.jaxpr_forms import find_primitive


def __getattr__(name: str) -> Any:
    """Return the primitive with a name. Distrax matches on those of elementwise functions and on `jit_p`."""
    if name.endswith("_p") and (primitive := find_primitive(name.removesuffix("_p"))) is not None:
        return primitive
    raise AttributeError(f"jax.extend.core.primitives.{name}: Shardwise has no such primitive", name=name)
