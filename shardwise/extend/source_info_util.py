"""jax.extend.source_info_util: files whose lines are not the user's."""

from shardwise.base.call_site import skip_folder
from shardwise.base.missing_names import report_missing

__all__ = ["register_exclusion"]  # Flax, Equinox, jaxtyping

register_exclusion = skip_folder

report_missing(__name__, __all__)
