"""Settings: one table of names, defaults and meanings, read as attributes and changed by `config.update(name, value)`.

A setting may be named as JAX names it (`jax_enable_x64`) or without the prefix. What `update` sets holds in all
threads; inside `config.override(name, value)`, of which the functions of `api/switches.py` are made, a value holds in
the thread that opened it. Settings that JAX has and that would change nothing here are taken where they ask for what is
done anyway (`FIXED_SETTINGS`), and refused otherwise. `docs/config.md` is made from these tables.
"""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from functools import wraps
from typing import Any, ClassVar, TypeVar, final

from shardwise.caches import registered_cache

_Function = TypeVar("_Function", bound=Callable[..., Any])
_ABSENT: Any = object()  # there is no value in this thread alone

FIRST_USE = "the first use of a device"
PRECISIONS = {  # how exactly products are made, as users write it: the name of the level
    "default": "DEFAULT",
    "high": "HIGH",
    "highest": "HIGHEST",
    "fastest": "DEFAULT",
    "bfloat16": "DEFAULT",
    "bfloat16_3x": "HIGH",
    "tensorfloat32": "HIGH",
    "float32": "HIGHEST",
}
GUARD_LEVELS = ("allow", "log", "disallow", "log_explicit", "disallow_explicit")


@final
@dataclass(frozen=True)
class Setting:
    """One row of the table.

    `choices`: the values that it can have, where these are few. `fits` says whether it can have a value, where that is
    not a matter of the default's type, and `wanted` what these are. `frozen_by` names the event after which it can no
    longer change. `shapes_programs`: a program that was traced or compiled under another value is not used.
    """

    default: Any
    meaning: str
    choices: tuple[Any, ...] = ()
    fits: Callable[[Any], bool] | None = None
    wanted: str = ""
    frozen_by: str = ""
    shapes_programs: bool = False

    def accepted(self, name: str, value: Any) -> Any:
        """`value` as this setting holds it; what it cannot have is an error."""
        if self.choices:
            if not any(value == choice and type(value) is type(choice) for choice in self.choices):
                raise ValueError(f"config {name!r} is one of {', '.join(map(repr, self.choices))}, not {value!r}")
            return value
        if value is None and self.default == "":
            return ""
        if type(value) is int and type(self.default) is float:
            return float(value)
        if not (type(value) is type(self.default) if self.fits is None else self.fits(value)):
            wanted = self.wanted or f"a {type(self.default).__name__}"
            raise TypeError(f"config {name!r} is {self.meaning}: it takes {wanted}, not {value!r}")
        return value

    def read(self, variable: str, text: str) -> Any:
        """The value that an environment variable gives."""
        kind = type(self.default)
        if text in self.choices or (kind is str and not self.choices):
            return text
        if self.default is None and (not text or not self.choices):
            return text or None
        if kind is bool and text.lower() in ("0", "1", "true", "false"):
            return text.lower() in ("1", "true")
        if kind is int and text.removeprefix("-").isdecimal() and (self.fits is None or self.fits(int(text))):
            return int(text)
        if kind is float and text.replace(".", "", 1).isdecimal():
            return float(text)
        wanted = f"one of {', '.join(map(str, self.choices))}" if self.choices else self.wanted or f"a {kind.__name__}"
        raise ValueError(f"environment variable {variable}={text!r} is not {wanted}")


_HOST_DEVICES = "--xla_force_host_platform_device_count"

SETTINGS = {
    "enable_x64": Setting(
        False, "64-bit types keep their width; off, they become 32-bit when they enter an array", shapes_programs=True
    ),
    "default_matmul_precision": Setting(
        None,
        "how exactly products and convolutions are made whose `precision` is None, on devices that make a difference",
        choices=(None, *PRECISIONS),
        shapes_programs=True,
    ),
    "numpy_dtype_promotion": Setting(
        "standard",
        "whether arrays of different dtypes meet in a common one (standard), or must be converted first (strict)",
        choices=("standard", "strict"),
        shapes_programs=True,
    ),
    "numpy_rank_promotion": Setting(
        "allow",
        "whether arrays of different ranks broadcast (allow), with a warning (warn), or not (raise); scalars always do",
        choices=("allow", "warn", "raise"),
        shapes_programs=True,
    ),
    "default_device": Setting(
        None,
        "the device, or the platform, where arrays go and programs run that nothing else places; None for the first",
        fits=lambda value: value is None or isinstance(value, str) or hasattr(value, "device_kind"),
        wanted="a device, the name of a platform, or None",
        shapes_programs=True,
    ),
    "platforms": Setting(
        "",
        "which kinds of devices to use, the first by default: cpu, gpu (cuda); empty for GPUs if there are any",
        frozen_by=FIRST_USE,
    ),
    "num_cpu_devices": Setting(
        8,
        "how many virtual devices the CPU client shows",
        fits=lambda value: type(value) is int and value >= 1,
        wanted="an int of at least 1",
        frozen_by=FIRST_USE,
    ),
    "disable_jit": Setting(False, "jitted functions run as they are written, op by op"),
    "debug_nans": Setting(False, "check every result for NaN, and name the op and the line that made the first"),
    "debug_infs": Setting(False, "the same for infinities"),
    "log_compiles": Setting(False, "log every compilation, with the time that it took"),
    "explain_cache_misses": Setting(False, "log why a jitted function is compiled again"),
    "transfer_guard_host_to_device": Setting(
        "allow",
        "numpy arrays and numbers that become arrays on a device without `device_put`: let them (allow), log or "
        "disallow; with _explicit, `device_put` too",
        choices=GUARD_LEVELS,
    ),
    "transfer_guard_device_to_device": Setting(
        "allow",
        "the same for arrays that are not where a program runs, and are moved there without `device_put`",
        choices=GUARD_LEVELS,
    ),
    "transfer_guard_device_to_host": Setting(
        "allow", "the same for arrays that are read on the host without `device_get`", choices=GUARD_LEVELS
    ),
    "memory_profile_lines": Setting(
        False,
        "memory profiles name the Python lines that made what is held; each call takes 2 µs more",
        frozen_by=FIRST_USE,
    ),
    "traceback_filtering": Setting(
        "auto",
        "errors show this package's frames (off), or hide them (all others)",
        choices=("auto", "off", "tracebackhide", "remove_frames", "quiet_remove_frames"),
    ),
    "memory_limit": Setting(
        0,
        "how many bytes a program may hold on each device of a mesh: where it would hold more, gathered copies are "
        "dropped and gathered again; 0 for as many as a GPU has, and any number on CPU; -1 for any number",
        shapes_programs=True,
    ),
    "verify_programs": Setting(
        False,
        "whether the invariants of every program are checked after each rewrite and derivative, not only on entry",
    ),
    "dump_to": Setting("", "a folder to which every compilation writes its stages as text; empty for none"),
    "enable_compilation_cache": Setting(True, "whether the folder `compilation_cache_dir` is used"),
    "compilation_cache_dir": Setting("", "a folder that keeps compiled programs for other processes; empty for none"),
    "compilation_cache_max_size": Setting(
        2**30, "how many bytes that folder may hold: what was not used for longest goes first; -1 for any number"
    ),
    "persistent_cache_min_compile_time_secs": Setting(0.0, "programs that take less to compile are not kept there"),
}

# Other names of settings, and the settings that `transfer_guard` sets together.
ALIASES = {"platform_name": "platforms", "dump_ir_to": "dump_to"}
TRANSFER_GUARDS = tuple(name for name in SETTINGS if name.startswith("transfer_guard_"))

# What JAX can be told and is always so here: the values that ask for it, and why there is no other.
FIXED_SETTINGS: dict[str, tuple[tuple[Any, ...], str]] = {
    "threefry_partitionable": ((True,), "random bits never depend on the layout"),
    "default_prng_impl": (("threefry2x32",), "it is the only generator"),
    "enable_custom_prng": ((False,), "`random.key` makes typed keys, `random.PRNGKey` raw ones"),
    "random_seed_offset": ((0,), "seeds are taken as they are"),
    "debug_key_reuse": ((False,), "keys that are used twice are not looked for"),
    "use_shardy_partitioner": ((True, False), "the partitioner is this package's own"),
    "enable_checks": ((True, False), "programs are always verified"),
    "check_tracer_leaks": ((False,), "a leaked tracer is an error when it is used, with the line that made it"),
    "cpu_collectives_implementation": (("gloo",), "processes talk through gloo"),
    "cpu_enable_async_dispatch": ((True,), "calls return before their results are there"),
    "disable_most_optimizations": ((False,), "XLA_FLAGS says what XLA optimises"),
    "array_garbage_collection_guard": ((None, "allow"), "arrays in cycles are collected like other objects"),
    "include_full_tracebacks_in_locations": ((False,), "an op keeps the one line of the user's that made it"),
    "traceback_in_locations_limit": ((1,), "an op keeps the one line of the user's that made it"),
    "compilation_cache_include_metadata_in_key": ((False,), "source lines are not part of what is looked up"),
    "persistent_cache_min_entry_size_bytes": ((0, -1), "programs of any size are kept"),
    "raise_persistent_cache_errors": ((False,), "a cache that cannot be used is logged, and done without"),
}


@final
class TraceSettings:
    """The values of the settings that shape programs. One object for equal values, so that keys compare identities."""

    __slots__ = ("values",)
    _interned: ClassVar[dict[tuple[Any, ...], "TraceSettings"]] = {}

    def __init__(self, values: tuple[Any, ...]):
        self.values = values

    @staticmethod
    def of(values: tuple[Any, ...]) -> "TraceSettings":
        return TraceSettings._interned.setdefault(values, TraceSettings(values))

    def __repr__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in zip(_SHAPING, self.values, strict=True))


_SHAPING = tuple(name for name, setting in SETTINGS.items() if setting.shapes_programs)


@final
class State:
    """What a call of a jitted function has to know of the settings, at the price of one read of a thread's own."""

    __slots__ = ("disable_jit", "trace_settings")

    def __init__(self, disable_jit: bool, trace_settings: TraceSettings):
        self.disable_jit = disable_jit
        self.trace_settings = trace_settings


class _Watching:
    """What holds for all threads: only where something does not is it worth asking for this one.

    `numbers`: whether numbers are checked in any of them. `state`: that of all of them; None where some have their own.
    """

    nan_checks = False
    state: State | None = None


all_threads = _Watching()


class Config(threading.local):
    """The settings in force. The environment variable of `enable_x64` is `SHARDWISE_ENABLE_X64`, and so on.

    Attributes of the class are the values for all threads; a thread's own, which hide them, are its overrides.
    """

    enable_x64: bool
    default_matmul_precision: str | None
    numpy_dtype_promotion: str
    numpy_rank_promotion: str
    default_device: Any
    platforms: str
    num_cpu_devices: int
    disable_jit: bool
    debug_nans: bool
    debug_infs: bool
    log_compiles: bool
    explain_cache_misses: bool
    transfer_guard_host_to_device: str
    transfer_guard_device_to_device: str
    transfer_guard_device_to_host: str
    memory_profile_lines: bool
    traceback_filtering: str
    memory_limit: int
    verify_programs: bool
    dump_to: str
    enable_compilation_cache: bool
    compilation_cache_dir: str
    compilation_cache_max_size: int
    persistent_cache_min_compile_time_secs: float
    state: State  # follows from the others

    _frozen: ClassVar[set[str]] = set()
    _overriding: ClassVar[dict[int, dict[str, Any]]] = {}  # the attributes of threads that have some
    _lock: ClassVar[Any] = threading.RLock()

    def update(self, name: str, value: Any) -> None:
        """Set `name` to `value`, in all threads that have not overridden it.

        An unknown name, a value that it cannot have, or a setting that came too late is an error.
        """
        for known, accepted in self._accepted(name, value).items():
            with Config._lock:
                setattr(Config, known, accepted)
                _derive()

    @contextmanager
    def override(self, name: str, value: Any) -> Iterator[None]:
        """While open, `name` is `value` in this thread."""
        mine = self.__dict__
        wanted = self._accepted(name, value)
        before = {known: mine.get(known, _ABSENT) for known in wanted}
        _write(mine, wanted)
        try:
            yield
        finally:
            _write(mine, before)

    def read(self, name: str) -> Any:
        """The value of a setting, by either of its names."""
        known = name.removeprefix("jax_")
        known = ALIASES.get(known, known)
        if known == "transfer_guard":
            values = {getattr(self, each) for each in TRANSFER_GUARDS}
            return values.pop() if len(values) == 1 else None
        if known in FIXED_SETTINGS:
            return FIXED_SETTINGS[known][0][0]
        if known not in SETTINGS:
            raise _unknown(name, known)
        return getattr(self, known)

    def __getattr__(self, name: str) -> Any:
        """JAX's name of a setting: those that are not found otherwise come here."""
        if name.startswith("__"):
            raise AttributeError(name)
        return self.read(name)

    def __setattr__(self, name: str, value: Any) -> None:
        self.update(name, value)

    def __delattr__(self, name: str) -> None:
        """Back to the value that it had at the start."""
        for known in self._accepted(name, self.read(name)):
            self.update(known, _at_start(known))

    def freeze(self, event: str) -> None:
        """Note that `event` has happened: the settings that it freezes cannot change any more."""
        self._frozen.add(event)

    def _accepted(self, name: str, value: Any) -> dict[str, Any]:
        """The settings that `name` stands for, with the value as they hold it; none where it would change nothing."""
        if not isinstance(name, str):
            raise TypeError(f"config: the name of a setting is a string, not {name!r}")
        known = name.removeprefix("jax_")
        known = ALIASES.get(known, known)
        if known == "transfer_guard":
            return {
                each: SETTINGS[each].accepted(each, "allow" if value is None else value) for each in TRANSFER_GUARDS
            }
        if known in FIXED_SETTINGS:
            values, why = FIXED_SETTINGS[known]
            if value not in values:
                raise NotImplementedError(
                    f"config {known!r} is always {' or '.join(map(repr, values))} here, and cannot be {value!r}: {why}"
                )
            return {}
        if known not in SETTINGS:
            raise _unknown(name, known)
        setting = SETTINGS[known]
        accepted = setting.accepted(known, value)
        if setting.frozen_by in self._frozen and accepted != getattr(self, known):
            raise RuntimeError(
                f"config {known!r} cannot change from {getattr(self, known)} to {accepted} after {setting.frozen_by}: "
                "set it at the start of the program, or in the environment"
            )
        return {known: accepted}


def _unknown(name: str, known: str) -> AttributeError:
    near = get_close_matches(known, SETTINGS, 1)
    hint = f" Did you mean {near[0]!r}?" if near else f" Settings: {', '.join(SETTINGS)}."
    return AttributeError(f"config has no setting {name!r}.{hint}")


def _write(mine: dict[str, Any], values: dict[str, Any]) -> None:
    """Change a thread's own attributes; what is absent is deleted."""
    with Config._lock:
        for name, value in values.items():
            mine.pop(name, None)
            if value is not _ABSENT:
                mine[name] = value
        if any(name in SETTINGS for name in mine):
            Config._overriding[id(mine)] = mine
        else:
            mine.pop("state", None)
            Config._overriding.pop(id(mine), None)
        _derive()


def _derive() -> None:
    """Bring up to date what follows from the settings."""
    Config.state = _state({})
    all_threads.state = None if Config._overriding else Config.state
    for mine in Config._overriding.values():
        mine["state"] = _state(mine)
    all_threads.nan_checks = any(
        scope.get(name, getattr(Config, name))
        for scope in ({}, *Config._overriding.values())
        for name in ("debug_nans", "debug_infs")
    )


def _state(mine: dict[str, Any]) -> State:
    def value(name: str) -> Any:
        return mine.get(name, getattr(Config, name))

    return State(value("disable_jit"), TraceSettings.of(tuple(map(value, _SHAPING))))


def _at_start(name: str) -> Any:
    """The value that the environment gives a setting, or its default."""
    variable = f"SHARDWISE_{name.upper()}"
    text = os.environ.get(variable)
    if name == "num_cpu_devices" and text is None:  # JAX's programs say it so
        asked = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if flag.startswith(f"{_HOST_DEVICES}=")]
        if asked:
            variable, _, text = asked[-1].partition("=")
    return SETTINGS[name].default if text is None else SETTINGS[name].read(variable, text)


def _start() -> Config:
    for name in SETTINGS:
        setattr(Config, name, _at_start(name))
    _derive()
    return Config()


config = _start()


def format_settings() -> str:
    """The tables, as `docs/config.md` shows them."""
    rows = ["| name | default | environment variable | meaning |", "|---|---|---|---|"]
    for name, setting in SETTINGS.items():
        values = f" One of {', '.join(f'`{choice!r}`' for choice in setting.choices)}." if setting.choices else ""
        fixed = f" It cannot change after {setting.frozen_by}." if setting.frozen_by else ""
        meaning = f"{setting.meaning[0].upper()}{setting.meaning[1:]}.{values}{fixed}"
        rows.append(f"| `{name}` | `{setting.default!r}` | `SHARDWISE_{name.upper()}` | {meaning} |")
    same = ["| name | values that are taken | why there is no other |", "|---|---|---|"]
    for name, (choices, why) in FIXED_SETTINGS.items():
        same.append(f"| `{name}` | {', '.join(f'`{choice!r}`' for choice in choices)} | {why} |")
    other = [f"`{alias}` is another name of `{name}`" for alias, name in ALIASES.items()]
    together = " and ".join(f"`{name}`" for name in TRANSFER_GUARDS)
    notes = f"{'; '.join(other)}; `transfer_guard` sets {together} together."
    return "\n".join(["## Settings", "", *rows, "", notes, "", "## Always so", "", *same]) + "\n"


def cached_by_settings(maxsize: int) -> Callable[[_Function], _Function]:
    """LRU cache whose keys include the settings that affect tracing."""

    def decorate(function: _Function) -> _Function:
        @registered_cache(maxsize)
        def lookup(trace_settings: TraceSettings, *args: Any, **keywords: Any) -> Any:
            return function(*args, **keywords)

        @wraps(function)
        def call(*args: Any, **keywords: Any) -> Any:
            return lookup(config.state.trace_settings, *args, **keywords)

        return call  # type: ignore[return-value]

    return decorate
