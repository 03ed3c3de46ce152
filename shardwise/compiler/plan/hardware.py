"""Lookup of chips by name and device kind: the built-in table (`chips.toml`) and the tables of users.

The comments in `chips.toml` name the source of each spec. Peak rates, memory and links are from data sheets. The
fractions of them that programs reach are measured (H200), fitted to published runs (A100), or assumed (the others).
`shardwise calibrate` measures the fractions of the devices at hand, and writes an entry to the user's table.
"""

import re
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from shardwise.base.call_site import warn_user
from shardwise.base.config import SETTINGS, config
from shardwise.base.lazy import lazy_module
from shardwise.compiler.plan.chip import Chip, Link
from shardwise.errors import HardwareError

if TYPE_CHECKING:
    from shardwise.compiler.plan import chip_table
else:  # its import takes 10 ms, and programs on CPU need no table
    chip_table = lazy_module("shardwise.compiler.plan.chip_table")

# Virtual devices share one memory and a few cores. The specs have the order of magnitude of a laptop. They are not
# measured, so that plans on CPU, such as those in tests and documents, are the same on every machine.
CPU = Chip(
    "cpu",
    device_kinds=("cpu", "absent"),  # devices of an AbstractMesh have the kind "absent"
    bf16_flops=2e10,
    f32_flops=2e10,
    memory=4 << 30,
    memory_bandwidth=4e10,
    fast_link=Link(2e9, 5e-6),
    slow_link=Link(1e9, 5e-5),
    fast_domain_size=1 << 16,  # so all axes have fast links
)

_PATH = re.compile(r"(?P<path>.+\.toml)(:(?P<name>[^:/\\]+))?")


@cache
def built_in_chips() -> Mapping[str, Chip]:
    """Return the built-in chips by name."""
    text = Path(__file__).with_name("chips.toml").read_text(encoding="utf-8")
    return {CPU.name: CPU, **chip_table.parse_chips(text, "chips.toml", {CPU.name: CPU})}


def known_chips() -> Mapping[str, Chip]:
    """Return the built-in chips and those of the user's table, by name.

    Raises:
        HardwareError: if the user's table is not valid.
    """
    return {**_user_chips(), **built_in_chips()}


def user_table() -> Path:
    """Return the path of the user's chip table, from the setting `chip_table`. The file need not exist."""
    return Path(config.chip_table).expanduser()


def chip(hardware: str | Chip) -> Chip:
    """Return the chip that a user names.

    Args:
        hardware: a chip; or the name of a chip in the built-in table or in the user's table, ignoring case, where TPUs
            may be called `tpu v5e`; or the path of a table, which ends in `.toml`; with several entries,
            `path.toml:name`.

    Raises:
        HardwareError: if there is no such chip, or if a table is invalid.
    """
    if isinstance(hardware, Chip):
        return hardware
    if not isinstance(hardware, str):
        raise HardwareError(f"hardware must be the name of a chip, or the path of a table of chips, not {hardware!r}")
    if match := _PATH.fullmatch(hardware):
        return _chip_of_table(match["path"], match["name"])
    name = hardware.lower().removeprefix("tpu").strip(" -_")
    chips = built_in_chips()
    if name not in chips:  # the user's table is read only then: it may be invalid
        chips = known_chips()
    if name not in chips:
        raise HardwareError(f"unknown hardware {hardware!r}. {_near_names(name, chips)}")
    return chips[name]


def chip_of(device_kind: str) -> Chip:
    """Return the chip of a device with this PJRT `device_kind`, for plans.

    It is a built-in chip. If there is none, it is the chip of the user's table that `shardwise calibrate` wrote for the
    kind, and otherwise the CPU, with a warning. All processes of a program must plan with the same specs, so the user's
    table must be the same on all hosts; if it is not, the processes compile different programs, which is an error.
    """
    found = built_in_chip_of(device_kind) or _chip_of_kind(device_kind, _user_chips())
    if found is None:
        _warn_of_unknown_kind(device_kind)
    return found or CPU


def built_in_chip_of(device_kind: str) -> Chip | None:
    """Return the built-in chip of a device with this PJRT `device_kind`; None if it is unknown."""
    return CPU if device_kind in CPU.device_kinds else _chip_of_kind(device_kind, built_in_chips())


def _chip_of_kind(device_kind: str, chips: Mapping[str, Chip]) -> Chip | None:
    matches = (row for row in chips.values() if any(kind.lower() in device_kind.lower() for kind in row.device_kinds))
    return next(matches, None)


_unknown_kinds: set[str] = set()  # each is one warning


def _warn_of_unknown_kind(device_kind: str) -> None:
    if device_kind not in _unknown_kinds:
        _unknown_kinds.add(device_kind)
        warn_user(
            f"the devices are of the kind {device_kind!r}, whose specs are unknown. Programs compute the same, but "
            "their layouts are planned with the specs of virtual CPU devices, and may be slow. Run `shardwise "
            f"calibrate` once: it measures the devices and writes their specs to {config.chip_table}, which plans then "
            "use."
        )


def _chip_of_table(path: str, name: str | None) -> Chip:
    chips = chip_table.read_chips(Path(path).expanduser(), built_in_chips())
    if name is None:
        if len(chips) == 1:
            return next(iter(chips.values()))
        names = ", ".join(map(repr, chips)) or "none"
        raise HardwareError(
            f"{path} must have one entry, or the hardware must be {path + ':name'!r}. Entries: {names}."
        )
    if name.lower() not in chips:
        raise HardwareError(f"{path} has no entry {name!r}. {_near_names(name.lower(), chips)}")
    return chips[name.lower()]


def _user_chips() -> Mapping[str, Chip]:
    """Return the chips of the user's table; none if the setting has its default and the file does not exist."""
    path = user_table()
    if config.chip_table == SETTINGS["chip_table"].default and not path.exists():
        return {}
    return chip_table.read_chips(path, built_in_chips())


def _near_names(name: str, chips: Mapping[str, Chip]) -> str:
    similar = get_close_matches(name, chips, 1)
    return f"Did you mean {similar[0]!r}?" if similar else f"Known chips: {', '.join(map(repr, chips))}."
