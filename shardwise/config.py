"""Settings: one table of names, defaults and meanings, read as attributes and changed by `config.update(name, value)`.

A setting may be named as JAX names it (`jax_enable_x64`) or without the prefix.
"""

import os
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, final


@final
@dataclass(frozen=True)
class Setting:
    """One row of the table. `frozen_by` names the event after which the setting can no longer change."""

    default: Any
    meaning: str
    frozen_by: str = ""


SETTINGS = {
    "enable_x64": Setting(False, "64-bit types keep their width; off, they become 32-bit when they enter an array"),
    "num_cpu_devices": Setting(
        8, "how many virtual devices the CPU client shows", frozen_by="the first use of a device"
    ),
    "debug_nans": Setting(False, "check every result for NaN, and name the op and the line that made the first"),
    "debug_infs": Setting(False, "the same for infinities"),
    "dump_to": Setting("", "a folder to which every compilation writes its stages as text; empty for none"),
    "explain_cache_misses": Setting(False, "log why a jitted function is compiled again"),
    "traceback_filtering": Setting("auto", "errors hide this package's frames (auto), or show them (off)"),
    "threefry_partitionable": Setting(True, "random bits do not depend on the layout; always so here"),
}


class Config:
    """The settings in force. The environment variable of `enable_x64` is `SHARDWISE_ENABLE_X64`, and so on."""

    enable_x64: bool
    num_cpu_devices: int
    debug_nans: bool
    debug_infs: bool
    dump_to: str
    explain_cache_misses: bool
    traceback_filtering: str
    threefry_partitionable: bool

    def __init__(self) -> None:
        self._frozen: set[str] = set()
        for name, setting in SETTINGS.items():
            text = os.environ.get(f"SHARDWISE_{name.upper()}")
            setattr(self, name, setting.default if text is None else _read(name, text))

    def update(self, name: str, value: Any) -> None:
        """Set `name` to `value`; an unknown name, a wrong type, or a setting that came too late is an error."""
        known = name.removeprefix("jax_")
        if known not in SETTINGS:
            near = get_close_matches(known, SETTINGS, 1)
            hint = f" Did you mean {near[0]!r}?" if near else f" Settings: {', '.join(SETTINGS)}."
            raise AttributeError(f"config has no setting {name!r}.{hint}")
        setting = SETTINGS[known]
        if type(value) is not type(setting.default):
            wanted = type(setting.default).__name__
            raise TypeError(f"config {known!r} is {setting.meaning}: it takes a {wanted}, not {value!r}")
        if setting.frozen_by in self._frozen and value != getattr(self, known):
            raise RuntimeError(
                f"config {known!r} cannot change from {getattr(self, known)} to {value} after {setting.frozen_by}: "
                "set it at the start of the program, or in the environment"
            )
        setattr(self, known, value)

    def freeze(self, event: str) -> None:
        """Note that `event` has happened: the settings that it freezes cannot change any more."""
        self._frozen.add(event)


def _read(name: str, text: str) -> Any:
    kind = type(SETTINGS[name].default)
    if kind is str:
        return text
    if kind is bool and text.lower() in ("0", "1", "true", "false"):
        return text.lower() in ("1", "true")
    if kind is int and text.isdecimal():
        return int(text)
    raise ValueError(f"environment variable SHARDWISE_{name.upper()}={text!r} is not a {kind.__name__}")


config = Config()
