"""The functions of JAX's compilation cache, for programs that call them. The settings of `config` do the same."""

from os import PathLike, fspath

from shardwise.base.config import config
from shardwise.base.lazy import publish


def set_cache_dir(path: PathLike[str] | str) -> None:
    """Set the folder of the persistent compilation cache, as the setting `compilation_cache_dir` does.

    Args:
        path: the folder. It is created if needed.

    Raises:
        TypeError: if `path` is not a path.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from shardwise.experimental.compilation_cache import compilation_cache
        >>> before = jax.config.compilation_cache_dir
        >>> with TemporaryDirectory() as folder:
        ...     compilation_cache.set_cache_dir(folder)
        ...     jax.config.compilation_cache_dir == folder
        True
        >>> jax.config.update("compilation_cache_dir", before)
    """
    config.update("compilation_cache_dir", fspath(path))


def reset_cache() -> None:
    """Do nothing: the settings of the cache are read at every compilation, and a new folder is used at once.

    Example:
        >>> from shardwise.experimental.compilation_cache import compilation_cache
        >>> compilation_cache.reset_cache()
    """


publish(__name__)
