"""Private modules of JAX that libraries import, or read as attributes of `jax._src`."""

from shardwise.base.missing_names import report_missing
from shardwise.jax_modules._src import (
    ad_util,
    api_util,
    checkify,
    compiler,
    core,
    cudnn,
    dispatch,
    distributed,
    dtypes,
    flatten_util,
    interpreters,
    lib,
    literals,
    mesh,
    numpy,
    state,
    traceback_util,
    tree_util,
    xla_bridge,
)

__all__ = [
    "ad_util",
    "api_util",
    "checkify",
    "compiler",
    "core",
    "cudnn",
    "dispatch",
    "distributed",
    "dtypes",
    "flatten_util",
    "interpreters",
    "lib",
    "literals",
    "mesh",
    "numpy",
    "state",
    "traceback_util",
    "tree_util",
    "xla_bridge",
]

report_missing(__name__, __all__)
