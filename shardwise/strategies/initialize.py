"""Initialize parameters sharded from the start: no host copy, and no device that holds all of them."""

from collections.abc import Callable
from typing import Any

from shardwise.api.ahead_of_time.inspect import eval_shape
from shardwise.api.jit import jit


def initialize(init: Callable[..., Any], choose: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return a function that computes parameters on the devices that will hold them.

    Args:
        init: a function that returns a pytree of arrays, such as parameters of random numbers.
        choose: a function from a pytree of `ShapeDtypeStruct`s, the types of what `init` returns, to shardings.

    Returns:
        A function with the arguments of `init`, which returns its result in these shardings.

    Raises:
        ValueError: when it is called, if the shardings are not a tree prefix of what `init` returns.

    Example:
        >>> mesh = jax.make_mesh((8,), ("data",))
        >>> init = lambda key: {"w": jax.random.normal(key, (16, 128))}
        >>> create = jax.strategies.initialize(init, lambda types: jax.strategies.fsdp(types, mesh))
        >>> create(jax.random.key(0))["w"].sharding.spec
        P(None, 'data')
    """

    def create(*args: object, **keywords: object) -> Any:
        shardings = choose(eval_shape(init, *args, **keywords))
        return jit(init, out_shardings=shardings)(*args, **keywords)

    return create
