"""Private modules of JAX that libraries import, or read as attributes of `jax._src`."""

from shardwise.jax_modules._src import (
    ad_util,
    checkify,
    compiler,
    core,
    dispatch,
    distributed,
    dtypes,
    flatten_util,
    interpreters,
    state,
    traceback_util,
    tree_util,
    xla_bridge,
)
from shardwise.jax_modules.missing import report_missing

__all__ = [
    "ad_util",
    "checkify",
    "compiler",
    "core",
    "dispatch",
    "distributed",
    "dtypes",
    "flatten_util",
    "interpreters",
    "state",
    "traceback_util",
    "tree_util",
    "xla_bridge",
]

report_missing(__name__, __all__)
