"""scipy.cluster.vq: assignment of observations to the codes of a code book."""

import shardwise.numpy as jnp
from shardwise.base.lazy import publish
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_inexact
from shardwise.typing import ArrayLike


def vq(obs: ArrayLike, code_book: ArrayLike, check_finite: bool = True) -> tuple[Array, Array]:
    """Assign every observation to the nearest code.

    Args:
        obs: the observations, of shape (n,) or (n, features).
        code_book: the codes, of shape (m,) or (m, features).
        check_finite: ignored; accepted for compatibility with scipy.

    Returns:
        The index of the nearest code for each observation, and the Euclidean distance to it.

    Raises:
        ValueError: if the ranks differ or are not 1 or 2, or the numbers of features differ.

    Example:
        >>> jax.scipy.cluster.vq.vq(jnp.array([0.5, 2.25]), jnp.array([0.0, 2.0]))
        (Array([0, 1], dtype=int32), Array([0.5 , 0.25], dtype=float32))
    """
    observations, codes = as_inexact(obs, "vq"), as_inexact(code_book, "vq")
    if observations.ndim != codes.ndim or observations.ndim not in (1, 2):
        raise ValueError(
            f"vq: observations and codes must both be of rank 1 or 2, not {observations.ndim} and {codes.ndim}"
        )
    if observations.ndim == 1:
        observations, codes = observations[:, None], codes[:, None]
    if observations.shape[1] != codes.shape[1]:
        raise ValueError(
            f"vq: observations and codes must have as many features, not {observations.shape[1]} and {codes.shape[1]}"
        )
    distances = jnp.linalg.norm(observations[:, None, :] - codes[None, :, :], axis=-1)
    return jnp.argmin(distances, axis=-1), jnp.min(distances, axis=-1)


publish(__name__)
