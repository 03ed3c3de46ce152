"""jax.extend.core.primitives: the primitives of Shardwise's ops under JAX's names, such as `exp_p` and `jit_p`."""

from typing import Any

from shardwise.api.jaxprs.jaxpr_forms import find_primitive
from shardwise.api.jaxprs.primitive import Primitive
from shardwise.base.call_site import calling_package, missing_name_error

__all__ = ["call_p", "closed_call_p"]  # the others are made when they are asked for

# NumPyro has rules for calls in two more forms. Jaxprs of Shardwise have none of these: a call is `jit_p`.
call_p = Primitive("call")
closed_call_p = Primitive("closed_call")


def __getattr__(name: str) -> Any:
    """Return the primitive with a name. Distrax matches on those of elementwise functions and on `jit_p`."""
    if name.endswith("_p") and (primitive := find_primitive(name.removesuffix("_p"))) is not None:
        return primitive
    package = calling_package()
    asked = f", which {package} asks for" if package else ""
    raise missing_name_error(
        f"{__name__} has no attribute {name!r}{asked}: Shardwise has no such primitive. It has those of elementwise "
        "functions and of the ops that libraries match on; `jax.make_jaxpr` shows them.",
        name,
    )


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
