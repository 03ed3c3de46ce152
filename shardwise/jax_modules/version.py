"""jax.version: the version of JAX whose API Shardwise follows."""

JAX_VERSION = (0, 10, 2)

__version_info__ = JAX_VERSION  # Flax, Orbax
__version__ = ".".join(map(str, JAX_VERSION))
