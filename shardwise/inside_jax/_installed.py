"""Raises an error if this process has no JAX that `inside_jax` supports. The package imports it before JAX."""

import sys
from importlib.metadata import PackageNotFoundError, version

from shardwise.errors import UnsupportedError

OLDEST, NEWEST = (0, 10), (0, 12)


def check_jax() -> None:
    """Check that `import jax` imports a supported release of the real JAX.

    Raises:
        ImportError: if JAX is not installed, or if `import jax` imports Shardwise.
        UnsupportedError: if the release is not supported.
    """
    if getattr(sys.modules.get("jax"), "__name__", "").startswith("shardwise"):
        raise ImportError(
            "shardwise.inside_jax plans programs of the real JAX, but in this process `import jax` imports Shardwise "
            "(`as_jax`, `shardwise run`). Use one of the two: run the script with `python`, or call `jax.jit`."
        )
    try:
        release = version("jax")
    except PackageNotFoundError:
        raise ImportError(
            "shardwise.inside_jax needs JAX, which is not installed: `pip install jax`. Without JAX, `import shardwise "
            "as jax` runs the same programs."
        ) from None
    if not OLDEST <= tuple(int(part) for part in release.split(".")[:2]) <= NEWEST:
        raise UnsupportedError(
            f"shardwise.inside_jax does not support JAX {release}: it uses private names of JAX, and is written for "
            "JAX 0.10 to 0.12. Install one of these."
        )


check_jax()
