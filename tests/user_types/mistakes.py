"""A user's program in which every line with the comment `mistake` has an error that type checkers must report."""

import shardwise as jax
import shardwise.numpy as jnp
from shardwise import Array, lax

x = jnp.ones(3)
jnp.nonexistent(x)  # mistake
lax.nonexistent(x)  # mistake
jax.nonexistent(x)  # mistake
jax.nn.nonexistent(x)  # mistake
jax.random.nonexistent(x)  # mistake
jnp.linalg.nonexistent(x)  # mistake
x.nonexistent()  # mistake
x.sum().nonexistent()  # mistake
x.at[0].assign(1)  # mistake
(x + 1).shapes()  # mistake
text: str = jnp.sin(x)  # mistake


@jax.jit
def scale(x: Array, factor: float = 2.0) -> Array:
    return x * factor


scale(x, factr=3.0)  # mistake
scale.lowered(x)  # mistake
scale(x).nonexistent()  # mistake
jax.jit(scale, static_argnum=0)  # mistake
jax.grad(scale)(x, factr=3.0)  # mistake
jax.vmap(scale)(x, 1.0, 2.0)  # mistake
jax.strategies.mixed_precision(scale)(x, factr=3.0)  # mistake
jax.ShapeDtypeStruct((3,), 4)  # mistake
lax.cond("yes", scale, scale, x)  # mistake
lax.fori_loop(0, 3.0, lambda index, total: total, x)  # mistake
jax.parallel.embedding_lookup(x, x, axis=0)  # mistake
jax.new_ref(x)["w"] = x  # mistake
