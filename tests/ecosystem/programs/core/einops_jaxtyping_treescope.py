"""einops: rearrange, reduce, einsum.

jaxtyping: types of arrays.

treescope: rendering of arrays.
"""

import jax
import jax.numpy as jnp
import numpy as np
import treescope
from einops import einsum, rearrange, reduce
from jaxtyping import Array, Float

from tests.ecosystem.report import report, shard

x = shard(np.arange(8 * 6 * 4, dtype=np.float32).reshape(8, 6, 4), "data")


@jax.jit
def f(x: Float[Array, "batch length width"]) -> Float[Array, "batch width"]:  # noqa: F722
    y = rearrange(x, "b (h l) w -> b h (l w)", h=2)
    z = reduce(y, "b h k -> b k", "max")
    return einsum(z, jnp.ones((12, 4)), "b k, k w -> b w")


report("einops", f(x))
report("jaxtyping", str(isinstance(x, Float[Array, "8 6 4"])))
report("rejected", str(isinstance(x, Float[Array, "8 6"])))
report("treescope", str(len(treescope.render_to_text({"x": x})) > 0))
