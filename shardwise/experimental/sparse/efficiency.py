"""The error and the warnings for layouts that store far more than the elements of a sparse array."""


class SparseEfficiencyError(ValueError):
    """Raised when the result of an operation would store many more elements than its operand.

    Example:
        >>> sparse = jax.experimental.sparse
        >>> try:
        ...     sparse.BCOO.fromdense(jnp.eye(4)).update_layout(n_batch=1)
        ... except sparse.SparseEfficiencyError:
        ...     print("the layout is inefficient")
        the layout is inefficient
    """


class SparseEfficiencyWarning(UserWarning):
    """Warns that the result of an operation stores many more elements than its operand.

    Example:
        >>> sparse = jax.experimental.sparse
        >>> import warnings
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("ignore", sparse.SparseEfficiencyWarning)
        ...     sparse.BCOO.fromdense(jnp.eye(4)).update_layout(n_batch=1, on_inefficient="warn")
        BCOO(float32[4, 4], nse=4, n_batch=1)
    """


class CuSparseEfficiencyWarning(SparseEfficiencyWarning):
    """Warns that cuSPARSE does not support an operation. Shardwise does not use cuSPARSE, and never issues it.

    Example:
        >>> issubclass(jax.experimental.sparse.CuSparseEfficiencyWarning, UserWarning)
        True
    """
