"""Shardwise as the partitioner of programs that stay on JAX: real `jax.Array`s in, real `jax.Array`s out.

from shardwise import inside_jax

step = inside_jax.jit(step)      # instead of jax.jit
"""

from shardwise.inside_jax import _installed  # noqa: F401 - raises an error without a supported JAX
from shardwise.inside_jax.autoshard import autoshard
from shardwise.inside_jax.budget import comm_budget, memory_budget
from shardwise.inside_jax.explain import explain, simulate, sweep
from shardwise.inside_jax.jit import jit
from shardwise.inside_jax.sharding_rules import register_sharding_rule

__all__ = ["autoshard", "comm_budget", "explain", "jit", "memory_budget", "register_sharding_rule", "simulate", "sweep"]
