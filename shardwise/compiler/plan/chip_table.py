"""Tables of chips: TOML files with one entry per chip, which users can write by hand.

    [my-h100]
    extends = "h100"          # fields that the entry omits have this chip's values
    product_fraction = 0.72
    slow_link = { bandwidth = 25e9, latency = 6e-6 }

An entry has the fields of `Chip`. An entry without `extends` needs all fields that have no default.

    sources = { product_fraction = "measured", kernel_gap = "assumed" }   # where figures are from

    [my-h100.profiles.capped]  # the chip `my-h100:capped`: other software, or other limits of power
    product_fraction = 0.61
"""

import json
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from shardwise.base.regular_file import read_regular_file
from shardwise.compiler.plan.chip import ASSUMED, Chip, Link
from shardwise.errors import HardwareError

_LARGEST_TABLE = 1 << 24  # bytes

PLATFORMS = ("cpu", "gpu", "tpu")
_FIELDS = {field.name: field for field in fields(Chip) if field.name != "name"}
_LINK_FIELDS = tuple(field.name for field in fields(Link))
_EXTENDS = "extends"
_PROFILES = "profiles"
_SOURCES = "sources"
_KINDS_OF_SOURCES = ("measured", "fitted", ASSUMED)
_OTHER_FIGURES = ("attention_grad_ratio", "kernel_gap", "interference")
FIGURES = tuple(name for name in _FIELDS if name.endswith("_fraction") or name in _OTHER_FIGURES)
_WITH_SOURCES = (*FIGURES, "torus_axes")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_HEADER = re.compile(r"\s*\[\s*(.+?)\s*\]\s*(#.*)?")


def read_chips(path: str | Path, known: Mapping[str, Chip]) -> dict[str, Chip]:
    """Return the chips of a table by name.

    Args:
        path: the file.
        known: the chips that entries may extend, in addition to earlier entries. Their names are reserved.

    Raises:
        HardwareError: if the file cannot be read or is not TOML, or if a field is unknown, missing or invalid.
    """
    return parse_chips(_read_table(path), str(path), known)


def _read_table(path: str | Path) -> str:
    """Return the contents of a table file.

    Raises:
        HardwareError: if it cannot be read.
    """
    try:
        return read_regular_file(path, _LARGEST_TABLE).decode()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise HardwareError(f"the table of chips {str(path)!r} cannot be read: {reason}") from error


def parse_chips(text: str, path: str, known: Mapping[str, Chip]) -> dict[str, Chip]:
    """Parse the contents of a table file. `path` is for messages."""
    try:
        entries = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise HardwareError(f"the table of chips {path!r} is not valid TOML: {error}") from error
    chips: dict[str, Chip] = {}
    for name, entry in entries.items():
        where = f"{path}: entry [{name}]"
        if not isinstance(entry, dict):
            raise HardwareError(f"{path}: {name!r} must be an entry: a line [name], and below it the fields of a chip")
        if name.lower() in known:  # reports refer to chips by name, so names must be unique
            raise HardwareError(f"{where} has the name of a built-in chip: choose another, such as {f'my-{name}'!r}")
        profiles = entry.pop(_PROFILES, {})
        chips[name.lower()] = _chip(name.lower(), entry, where, {**known, **chips})
        if not isinstance(profiles, dict) or not all(isinstance(profile, dict) for profile in profiles.values()):
            raise HardwareError(f"{where}: profiles must be entries: a line [{name}.profiles.profile] for each")
        for profile, changes in profiles.items():
            key = f"{name}:{profile}".lower()
            extended = {_EXTENDS: name.lower(), **changes}
            chips[key] = _chip(key, extended, f"{path}: entry [{name}.profiles.{profile}]", {**known, **chips})
    return chips


def format_chip(chip: Chip, comment: str = "") -> str:
    """Format a chip as an entry of a table. `comment` goes above it."""
    lines = [f"# {line}" for line in comment.splitlines()]
    lines.append(f"[{_key(chip.name)}]")
    for name, field in _FIELDS.items():
        value = getattr(chip, name)
        if field.default is MISSING or value != field.default:
            lines.append(f"{name} = {_value(name, value)}")
    return "\n".join(lines) + "\n"


def check_table(path: str | Path, known: Mapping[str, Chip]) -> None:
    """Raise an error if a chip could not be written to a table. Called before a measurement, which takes minutes.

    Raises:
        HardwareError: if the file is not a table of chips.
        OSError: if the file or its folder cannot be written.
    """
    path = Path(path)
    if path.exists():
        parse_chips(_read_table(path), str(path), known)
    existing = next(place for place in (path, *path.absolute().parents) if place.exists())
    if existing != path and not existing.is_dir():
        raise NotADirectoryError(f"the table {str(path)!r} cannot be created: {str(existing)!r} is not a folder")
    if not os.access(existing, os.W_OK):
        raise PermissionError(f"the table {str(path)!r} cannot be written: no permission for {str(existing)!r}")


def write_chip(path: str | Path, chip: Chip, known: Mapping[str, Chip], comment: str = "") -> None:
    """Write a chip to a table. An entry of the same name is replaced; the others stay.

    Args:
        path: the file. It and its folder are created if they do not exist.
        chip: the chip.
        known: the chips that entries may extend.
        comment: a comment above the entry.

    Raises:
        HardwareError: if the file holds something else than a table of chips.
        OSError: if the file cannot be written.
    """
    path = Path(path)
    before = _read_table(path) if path.exists() else ""
    parse_chips(before, str(path), known)  # do not overwrite a file that is not a table of chips
    text = _with_entry(before, chip.name, format_chip(chip, comment))
    parse_chips(text, str(path), known)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _chip(name: str, entry: Mapping[str, Any], where: str, known: Mapping[str, Chip]) -> Chip:
    for field in entry:
        if field not in _FIELDS and field != _EXTENDS:
            near = get_close_matches(field, [*_FIELDS, _EXTENDS], 1)
            hint = f"Did you mean {near[0]!r}?" if near else f"Fields: {', '.join([_EXTENDS, *_FIELDS])}."
            raise HardwareError(f"{where} has an unknown field {field!r}. {hint}")
    values = {field: _checked(field, value, where) for field, value in entry.items() if field != _EXTENDS}
    if _EXTENDS in entry:
        base = entry[_EXTENDS]
        if base not in known:
            raise HardwareError(f"{where}: extends must be one of {', '.join(map(repr, known))}, not {base!r}")
        # Without its own kinds, the entry matches no devices: the kinds of the base chip are not inherited.
        inherited = {figure: source for figure, source in known[base].sources if figure not in values}
        values[_SOURCES] = tuple({**inherited, **dict(values.get(_SOURCES, ()))}.items())
        return replace(known[base], name=name, **{"device_kinds": (), **values})
    needed = [field.name for field in _FIELDS.values() if field.default is MISSING]
    if missing := [field for field in needed if field not in values]:
        raise HardwareError(f"{where} needs {', '.join(missing)}; or `extends`, the name of a chip that has them")
    return Chip(name, **values)


def _checked(field: str, value: object, where: str) -> Any:
    """Return the value of a field, converted to its type in `Chip`, or raise an error."""
    if field in ("fast_link", "slow_link"):
        if not isinstance(value, dict) or {*value} != {*_LINK_FIELDS}:
            raise HardwareError(
                f"{where}: {field} must have bandwidth and latency, as {{ bandwidth = 50e9, latency = 6e-6 }}, "
                f"not {value!r}"
            )
        checked = {part: _checked_number(f"{field}.{part}", value[part], where) for part in _LINK_FIELDS}
        return Link(**checked)
    if field == "device_kinds":
        if not isinstance(value, list) or not all(isinstance(kind, str) for kind in value):
            raise HardwareError(f'{where}: {field} must be a list of strings, as ["H100"], not {value!r}')
        return tuple(value)
    if field == "platform":
        if value not in PLATFORMS:
            raise HardwareError(f"{where}: platform must be one of {', '.join(map(repr, PLATFORMS))}, not {value!r}")
        return value
    if field == "overlaps":
        if not isinstance(value, bool):
            raise HardwareError(f"{where}: overlaps must be true or false, not {value!r}")
        return value
    if field == _SOURCES:
        return _checked_sources(value, where)
    return _checked_number(field, value, where)


def _checked_sources(value: object, where: str) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, dict) or not all(isinstance(source, str) for source in value.values()):
        raise HardwareError(f'{where}: sources must be as {{ product_fraction = "measured" }}, not {value!r}')
    for figure, source in value.items():
        if figure not in _WITH_SOURCES:
            raise HardwareError(f"{where}: sources has {figure!r}, which is none of {', '.join(_WITH_SOURCES)}")
        if not source.startswith(_KINDS_OF_SOURCES):
            kinds = ", ".join(map(repr, _KINDS_OF_SOURCES))
            raise HardwareError(f"{where}: the source of {figure} must begin with one of {kinds}, not be {source!r}")
    return tuple(value.items())


def _checked_number(field: str, value: object, where: str) -> float | int:
    last = field.rpartition(".")[2]
    is_valid: Callable[[float], bool]
    if last in ("memory", "cores", "fast_domain_size", "torus_dims", "torus_axes"):
        expected, is_valid = "an integer of at least 1", lambda number: number == int(number) and number >= 1
    elif last in ("reserved_memory", "product_workspace"):
        expected, is_valid = "an integer of at least 0", lambda number: number == int(number) and number >= 0
    elif last.endswith("_fraction"):
        expected, is_valid = "a number above 0 and at most 1", lambda number: 0 < number <= 1
    elif last == "interference":
        expected, is_valid = "a number of at least 0 and below 1", lambda number: 0 <= number < 1
    elif last in ("kernel_gap", "latency"):
        expected, is_valid = "a number of seconds, at least 0", lambda number: 0 <= number < float("inf")
    else:
        expected, is_valid = "a number above 0", lambda number: 0 < number < float("inf")
    if not isinstance(value, (int, float)) or isinstance(value, bool) or value != value or abs(value) == float("inf"):
        raise HardwareError(f"{where}: {field} must be {expected}, not {value!r}")
    if not is_valid(value):
        raise HardwareError(f"{where}: {field} must be {expected}, not {value!r}")
    return int(value) if expected.startswith("an integer") else float(value)


def _value(field: str, value: Any) -> str:
    """Return the value of a field as TOML."""
    if isinstance(value, Link):
        return f"{{ bandwidth = {_number(value.bandwidth)}, latency = {_number(value.latency)} }}"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return _number(value)
    if field == _SOURCES:
        return "{ " + ", ".join(f"{figure} = {json.dumps(source)}" for figure, source in value) + " }"
    return json.dumps(list(value) if isinstance(value, tuple) else value)


def _number(value: float) -> str:
    """Format a number with four digits: 4.5e11, 2e-6, 0.8. Further digits of a measurement would be noise."""
    text = re.sub(r"e([+-])0*", lambda match: "e" + match[1].strip("+"), f"{value:.4g}")
    return text if any(mark in text for mark in ".e") else f"{text}.0"


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else json.dumps(name)


def _with_entry(text: str, name: str, entry: str) -> str:
    """Return the contents of a table with an entry, which replaces the entry of this name or is appended."""
    result: list[str] = []
    comment: list[str] = []  # comments and empty lines, which belong to the next header if one follows
    is_replaced = False
    for line in text.splitlines(keepends=True):
        match = _HEADER.fullmatch(line.rstrip("\n"))
        if match:
            is_replaced = match[1].strip("\"'").lower() == name
            comment = ["\n" if result else ""] if is_replaced else comment
        if line.startswith("#") or not line.strip():
            comment.append(line)
        elif match and is_replaced:
            result += [*comment, entry]
        elif not is_replaced:
            result += [*comment, line]
        if line.strip() and not line.startswith("#"):
            comment = []
    text = "".join(result + comment).rstrip("\n")
    if entry in result:
        return f"{text}\n"
    return f"{text}\n\n{entry}" if text else entry
