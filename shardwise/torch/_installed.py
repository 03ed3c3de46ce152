"""Prepares the process for torchax, before anything imports it: a supported pair, and `import jax` as Shardwise."""

from shardwise.base.torch_versions import INSTALL, PAIR, torch_problem
from shardwise.jax_modules.install import as_jax


def prepare() -> None:
    """Check the installed versions, and let `import jax` mean Shardwise: torchax imports jax.

    Raises:
        ImportError: if PyTorch or torchax is missing or has another version, or if the real jax is imported already.
    """
    if (problem := torch_problem()) is not None:
        raise ImportError(f"shardwise.torch needs {PAIR}, but {problem}: {INSTALL}")
    try:
        as_jax()
    except RuntimeError as error:
        raise ImportError(f"shardwise.torch runs torchax on Shardwise. {error}") from None


prepare()
