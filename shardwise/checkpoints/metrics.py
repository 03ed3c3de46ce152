"""Metrics of a step: numbers by name, stored in its manifest."""

from collections.abc import Mapping

from shardwise.checkpoints.manifest import Manifest
from shardwise.errors import CheckpointError


def checked_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return metrics as Python floats.

    Raises:
        TypeError: if they are not numbers by name.
    """
    if not isinstance(metrics, Mapping):
        raise TypeError(f"metrics are a dict of numbers by name, not {metrics!r}")
    values = {}
    for name, value in metrics.items():
        try:
            values[str(name)] = float(value)
        except (TypeError, ValueError) as error:
            raise TypeError(f"the metric {name!r} is not a number: {error}") from None
    return values


def encode_metrics(metrics: Mapping[str, float]) -> dict[str, str]:
    """Return metrics as JSON. Floats are hexadecimal, so that they are exact and may be infinite or NaN."""
    return {name: value.hex() for name, value in metrics.items()}


def decode_metrics(manifest: Manifest, path: str) -> dict[str, float]:
    """Return the metrics that were saved with the step at `path`.

    Raises:
        CheckpointError: if the checkpoint was not saved by a Manager.
    """
    try:
        return {name: float.fromhex(value) for name, value in manifest.metadata.get("metrics", {}).items()}
    except (AttributeError, TypeError, ValueError):
        raise CheckpointError(f"{path} was not saved by a Manager: its metadata has other metrics") from None
