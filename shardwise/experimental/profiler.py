"""jax.experimental.profiler: what a profile says about the instructions of a program."""

from os import PathLike, fspath

from shardwise.base._jaxlib import profiled_instructions
from shardwise.base.lazy import publish


def get_profiled_instructions_proto(tensorboard_dir: str | PathLike[str]) -> bytes:
    """Read the costs of instructions from a profile, for XLA's profile-guided latency estimator.

    Args:
        tensorboard_dir: the folder of one run, `<log_dir>/plugins/profile/<run>`.

    Returns:
        A serialized `ProfiledInstructionsProto`, for the compiler option `fdo_profile`. It is empty unless the profile
        is one of NVIDIA GPUs.

    Raises:
        JaxRuntimeError: if the folder has no profile.

    Example:
        >>> with jax.profiler.trace(folder):
        ...     _ = (jnp.arange(3) + 1).block_until_ready()
        >>> (run,) = (folder / "plugins" / "profile").iterdir()
        >>> type(jax.experimental.profiler.get_profiled_instructions_proto(run))
        <class 'bytes'>
    """
    return profiled_instructions(fspath(tensorboard_dir))


publish(__name__)
