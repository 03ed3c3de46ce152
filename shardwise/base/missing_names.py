"""Errors for names of JAX that libraries ask for and a module lacks."""

import sys
from collections.abc import Iterable
from typing import NoReturn

from shardwise.base.call_site import calling_package, missing_name_error
from shardwise.base.lazy import set_public_names


def report_missing(module: str, names: Iterable[str]) -> None:
    """Set `__getattr__` and `__dir__` of a module, so that a name which it lacks raises an error with the library."""
    known = sorted(names)
    in_jax = module.replace("shardwise.jax_modules", "jax").replace("shardwise", "jax")
    set_public_names(module, known)

    def get(name: str) -> NoReturn:
        package = calling_package()
        asked = f", which {package} asks for," if package else ""
        offered = f" It provides {', '.join(known)}." if known else ""
        raise missing_name_error(
            f"{module} has no attribute {name!r}: {in_jax}.{name}{asked} is not provided by Shardwise.{offered}", name
        )

    vars(sys.modules[module])["__getattr__"] = get
