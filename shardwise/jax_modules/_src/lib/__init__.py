"""jax._src.lib: the version of jaxlib. Its modules have the same names here, such as `jax._src.lib.xla_client`."""

from shardwise.base._jaxlib import extension_version, jaxlib_version
from shardwise.base.missing_names import report_missing
from shardwise.jax_modules.version import __version_info__

__all__ = ["jaxlib_extension_version", "version", "version_str"]  # Grain

jaxlib_extension_version = extension_version()
version = __version_info__
version_str = jaxlib_version()

report_missing(__name__, __all__)
