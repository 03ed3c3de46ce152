"""check_transfer: apply the settings `transfer_guard_*` to transfers between host and devices."""

import logging

from shardwise.base.config import config
from shardwise.errors import TransferError

_log = logging.getLogger("shardwise")
_ALTERNATIVES = {
    "host_to_device": "move it with `device_put` first",
    "device_to_device": "move it with `device_put` first",
    "device_to_host": "read it with `device_get`",
}


def check_transfer(direction: str, what: object, explicit: bool = False) -> None:
    """Log or disallow a transfer, according to the settings.

    Args:
        direction: `host_to_device`, `device_to_device` or `device_to_host`.
        what: the type of the array, for the message.
        explicit: whether the user requested the transfer, by `device_put` or `device_get`.
    """
    level = getattr(config, f"transfer_guard_{direction}")
    if level == "allow" or (explicit and not level.endswith("_explicit")):
        return
    if level.startswith("log"):
        _log.warning("a transfer from %s: %s", direction.replace("_", " "), what)
        return
    hint = "" if explicit else f"; {_ALTERNATIVES[direction]}, or allow it with `transfer_guard_{direction}('allow')`"
    raise TransferError(f"a transfer from {direction.replace('_', ' ')} is disallowed here: {what}{hint}")
