"""Transfers between host and devices, and from some devices to others: what the settings `transfer_guard_*` allow."""

import logging

from shardwise.config import config
from shardwise.errors import TransferError

_log = logging.getLogger("shardwise")
_WAYS_OUT = {
    "host_to_device": "move it with `device_put` first",
    "device_to_device": "move it with `device_put` first",
    "device_to_host": "read it with `device_get`",
}


def check_transfer(direction: str, what: object, explicit: bool = False) -> None:
    """Log a transfer of `what`, or refuse it, if the settings say so. `explicit`: the user asked for just this."""
    level = getattr(config, f"transfer_guard_{direction}")
    if level == "allow" or (explicit and not level.endswith("_explicit")):
        return
    if level.startswith("log"):
        _log.warning("a transfer from %s of %s", direction.replace("_", " "), what)
        return
    way_out = "" if explicit else f": {_WAYS_OUT[direction]}, or allow it with `transfer_guard_{direction}('allow')`"
    raise TransferError(f"a transfer from {direction.replace('_', ' ')} is disallowed here, of {what}{way_out}")
