"""jax._src.source_info_util: which files belong to the user's code in tracebacks."""

from shardwise.base.missing_names import report_missing

__all__ = ["register_exclusion", "register_inclusion"]


def register_inclusion(path: str) -> None:
    """Do nothing: files outside of Shardwise are the user's code already."""  # the kernels in JAX's wheel


def register_exclusion(path: str) -> None:
    """Do nothing: the files of libraries stay in tracebacks."""  # the kernels in JAX's wheel


report_missing(__name__, __all__)
