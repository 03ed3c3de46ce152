"""Settings: one table of names, defaults and descriptions, read as attributes, changed by `config.update(name, value)`.

A setting may have JAX's name (`jax_enable_x64`) or the name without the prefix. `update` sets a value for all threads.
`config.override(name, value)`, which the contexts of `api/config_contexts.py` use, sets it for the current thread.
`jax_compatibility` selects the defaults of the settings that have an `exact_default`; a value that the user sets wins.
JAX's settings that have one possible value here (`FIXED_SETTINGS`) accept that value and reject others.
`docs/config.md` is generated from these tables.
"""

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from functools import wraps
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar, final

from shardwise.base.caches import clear_all, registered_cache
from shardwise.base.fixed_settings import FIXED_SETTINGS

_Function = TypeVar("_Function", bound=Callable[..., Any])
_ABSENT: Any = object()  # the thread does not override the setting, or it has no other default

FIRST_USE = "the first use of a device"
MAX_CPU_DEVICES = 2048  # XLA's device ids have 11 bits for the device of a process
PRECISIONS = {  # the names of matmul precisions that users write, and of the `Precision` that each selects
    "default": "DEFAULT",
    "high": "HIGH",
    "highest": "HIGHEST",
    "fastest": "DEFAULT",
    "bfloat16": "DEFAULT",
    "bfloat16_3x": "HIGH",
    "tensorfloat32": "HIGH",
    "float32": "HIGHEST",
}
_EFFORT_LEVELS = ("UNKNOWN", "O0", "O1", "O2", "O3")
GUARD_LEVELS = ("allow", "log", "disallow", "log_explicit", "disallow_explicit")


@final
@dataclass(frozen=True)
class Setting:
    """One setting.

    Attributes:
        default: the default value.
        description: its effect, for the documentation and for errors.
        choices: all values that it can have, if these are few.
        is_valid: whether a value is valid, if the type of the default does not determine it.
        expected: the valid values in words, for errors.
        frozen_by: the event after which it cannot change, or "".
        affects_tracing: whether it is part of the key of traced and compiled programs.
        exact_default: the default value if `jax_compatibility` is "exact", where it differs.
    """

    default: Any
    description: str
    choices: tuple[Any, ...] = ()
    is_valid: Callable[[Any], bool] | None = None
    expected: str = ""
    frozen_by: str = ""
    affects_tracing: bool = False
    exact_default: Any = _ABSENT

    @property
    def has_exact_default(self) -> bool:
        """Whether `jax_compatibility` selects the default."""
        return self.exact_default is not _ABSENT

    def validate(self, name: str, value: object) -> Any:
        """Return `value` in the type of the setting, or raise an error."""
        if self.choices:
            if not any(value == choice and type(value) is type(choice) for choice in self.choices):
                raise ValueError(f"config {name!r} must be one of {', '.join(map(repr, self.choices))}, not {value!r}")
            return value
        if value is None and self.default == "":
            return ""
        if type(value) is int and type(self.default) is float:
            return float(value)
        if not (type(value) is type(self.default) if self.is_valid is None else self.is_valid(value)):
            expected = self.expected or f"a {type(self.default).__name__}"
            raise TypeError(f"config {name!r} ({self.description}) must be {expected}, not {value!r}")
        return value

    def parse(self, variable: str, text: str) -> Any:
        """Return the value of an environment variable, or raise an error."""
        default_type = type(self.default)
        if text in self.choices or (default_type is str and not self.choices):
            return text
        if self.default is None and (not text or not self.choices):
            return text or None
        if default_type is bool and text.lower() in ("0", "1", "true", "false"):
            return text.lower() in ("1", "true")
        if (
            default_type is int
            and text.removeprefix("-").isdecimal()
            and (not self.is_valid or self.is_valid(int(text)))
        ):
            return int(text)
        if default_type is float and text.replace(".", "", 1).isdecimal():
            return float(text)
        expected = self.expected or f"a {default_type.__name__}"
        if self.choices:
            expected = f"one of {', '.join(map(str, self.choices))}"
        raise ValueError(f"environment variable {variable}={text!r} is not {expected}")


_HOST_DEVICES = "--xla_force_host_platform_device_count"

SETTINGS = {
    "jax_compatibility": Setting(  # the first, because it selects the defaults of others
        "extended",
        "whether programs may do more than in JAX (extended), or behave exactly as in JAX (exact), in each row of the "
        "table in docs/from-jax.md but failures of processes; it selects the defaults of other settings",
        choices=("extended", "exact"),
        frozen_by=FIRST_USE,
    ),
    "enable_x64": Setting(
        False,
        "whether 64-bit dtypes keep their width; otherwise new arrays convert them to 32 bits",
        affects_tracing=True,
    ),
    "explicit_x64_dtypes": Setting(
        "warn",
        "whether a request of a 64-bit dtype while `enable_x64` is off warns (warn) or is an error (error)",
        choices=("warn", "error"),
        affects_tracing=True,
    ),
    "mesh_axis_types": Setting(
        "auto",
        "the type of the axes that `make_mesh` creates without `axis_types`: auto, or explicit as in JAX",
        choices=("auto", "explicit"),
        exact_default="explicit",
    ),
    "callback_errors": Setting(
        "unchanged",
        "which error a call raises if a callback fails: the callback's own exception (unchanged), or, as in JAX, a "
        "JaxRuntimeError with its traceback as text (jax); `as_jax` sets the latter",
        choices=("unchanged", "jax"),
        exact_default="jax",
    ),
    "default_matmul_precision": Setting(
        None,
        "the precision of matrix products and convolutions whose `precision` is None, where a device has several",
        choices=(None, *PRECISIONS),
        affects_tracing=True,
    ),
    "numpy_dtype_promotion": Setting(
        "standard",
        "whether operands of different dtypes are promoted to a common dtype (standard) or are an error (strict)",
        choices=("standard", "strict"),
        affects_tracing=True,
    ),
    "numpy_rank_promotion": Setting(
        "allow",
        "whether operands of different ranks broadcast (allow), with a warning (warn), or are an error (raise); "
        "scalars always broadcast",
        choices=("allow", "warn", "raise"),
        affects_tracing=True,
    ),
    "xla_metadata": Setting(
        "",
        "attributes of ops that XLA keeps in HLO, a JSON object of strings; `experimental.xla_metadata` sets it",
        affects_tracing=True,
    ),
    "no_collectives": Setting(
        frozenset(),
        "the mesh axes along which ops must not communicate; `sharding.no_collectives` sets it",
        is_valid=lambda value: isinstance(value, frozenset) and all(isinstance(axis, str) for axis in value),
        expected="a frozenset of names of mesh axes",
        affects_tracing=True,
    ),
    "default_prng_impl": Setting(
        "threefry2x32",
        "the PRNG implementation of new keys, and of raw keys",
        choices=("threefry2x32", "rbg", "unsafe_rbg"),
        affects_tracing=True,
    ),
    "in_shardings_mismatch": Setting(
        "warn",
        "whether a committed argument whose sharding differs from `in_shardings` is resharded in every call (allow), "
        "with a warning (warn), or is an error (raise), as in JAX",
        choices=("warn", "allow", "raise"),
        affects_tracing=True,
        exact_default="raise",
    ),
    "random_seed_offset": Setting(
        0, "an integer that is added to the seeds of `random.key` and `random.PRNGKey`", affects_tracing=True
    ),
    "default_device": Setting(
        None,
        "the device or the platform for arrays and programs that nothing else places; None for the first device",
        is_valid=lambda value: value is None or isinstance(value, str) or hasattr(value, "device_kind"),
        expected="a device, the name of a platform, or None",
        affects_tracing=True,
    ),
    "target_platform": Setting(
        "",
        "the platform that functions are traced for: cpu, gpu or tpu; empty for that of the devices. `simulate` and "
        "`explain` set it to the platform of their hardware",
        choices=("", "cpu", "gpu", "tpu"),
        affects_tracing=True,
    ),
    "platforms": Setting(
        "",
        "the platforms to use, separated by commas, the default first: cpu, or the name of a PJRT plugin, such as "
        "cuda, rocm, gpu (any of these) or tpu; empty for the plugin of the highest priority with devices, or else cpu",
        frozen_by=FIRST_USE,
    ),
    "num_cpu_devices": Setting(
        8,
        "the number of virtual devices of the CPU client",
        is_valid=lambda value: type(value) is int and 1 <= value <= MAX_CPU_DEVICES,
        expected=f"an int from 1 to {MAX_CPU_DEVICES}",
        frozen_by=FIRST_USE,
        exact_default=1,
    ),
    "disable_jit": Setting(False, "whether jitted functions run uncompiled, op by op"),
    "debug_nans": Setting(False, "check every result for NaN, and report the op and the source line of the first"),
    "debug_infs": Setting(False, "check every result for infinities, as `debug_nans` does for NaN"),
    "log_compiles": Setting(False, "log every compilation and its duration"),
    "progress": Setting(
        True,
        "whether traces, compilations, `autoshard` and sweeps of more than 5 seconds show their stage and duration: on "
        "standard error if it is a terminal, or below the cell of a notebook",
    ),
    "explain_cache_misses": Setting(False, "log why a jitted function is compiled again"),
    "no_tracing": Setting(False, "whether tracing a jitted function is an error, such as for arguments of a new shape"),
    "no_execution": Setting(False, "whether running a compiled program is an error"),
    "check_tracer_leaks": Setting(
        False, "whether a tracer that outlives its trace is an error at once, with the objects that refer to it"
    ),
    "check_static_indices": Setting(
        False,
        "whether a static integer index that is out of bounds is an error; otherwise the nearest element is read",
        affects_tracing=True,
    ),
    "enable_custom_prng": Setting(
        False, "whether `random.PRNGKey` returns a typed key, as `random.key` does", affects_tracing=True
    ),
    "legacy_prng_key": Setting(
        "allow",
        "whether functions of `random` accept raw keys, u32[2] (allow), with a warning (warn), or not (error)",
        choices=("allow", "warn", "error"),
        affects_tracing=True,
    ),
    "debug_launch_order": Setting(
        False, "compare every launch on several processes before it runs, not only the first of each program"
    ),
    "debug_process_values": Setting(
        False,
        "compare host values that programs on several processes use: numpy arguments, numbers and captured arrays",
    ),
    "remove_size_one_mesh_axis_from_type": Setting(
        False,
        "whether the types of new arrays and of traced values leave out mesh axes of size 1",
        affects_tracing=True,
    ),
    "debug_key_reuse": Setting(False, "whether drawing from a typed PRNG key twice is an error", affects_tracing=True),
    "transfer_guard_host_to_device": Setting(
        "allow",
        "implicit transfers of numpy arrays and numbers to devices: allow, log or disallow them; with _explicit, those "
        "of `device_put` too",
        choices=GUARD_LEVELS,
    ),
    "transfer_guard_device_to_device": Setting(
        "allow",
        "the same for implicit transfers of arrays to the devices of a program",
        choices=GUARD_LEVELS,
    ),
    "transfer_guard_device_to_host": Setting(
        "allow", "the same for arrays that are read on the host, and for `device_get`", choices=GUARD_LEVELS
    ),
    "memory_profile_lines": Setting(
        False,
        "whether memory profiles have the Python lines that created each array; each call takes 2 µs longer",
        frozen_by=FIRST_USE,
    ),
    "traceback_filtering": Setting(
        "auto",
        "whether tracebacks show this package's frames (off) or hide them (all other values)",
        choices=("auto", "off", "tracebackhide", "remove_frames", "quiet_remove_frames"),
    ),
    "memory_limit": Setting(
        0,
        "the bytes that a program may use per device of a mesh; above it, gathered copies are dropped and gathered "
        "again, loops reduce sums and gather values in every iteration, and stacks of saved activations are sharded; "
        "0 for the memory of a GPU and no limit on CPU; -1 for no limit",
        affects_tracing=True,
    ),
    "improve_plans": Setting(
        False,
        "whether a program is planned again around its costliest collectives, and the fastest plan is taken; "
        "compilation takes longer, and equal layers may get different layouts",
        affects_tracing=True,
    ),
    "schedule_communication": Setting(
        True,
        "whether the plan schedules communication where it overlaps with compute, as on GPUs: collectives that are "
        "needed together share a launch",
        affects_tracing=True,
    ),
    "own_kernels": Setting(
        True,
        "whether the functions of `shardwise.kernels` are Triton kernels on NVIDIA GPUs, instead of XLA's",
        affects_tracing=True,
    ),
    "optimization_level": Setting(
        "UNKNOWN",
        "XLA's effort for fast programs, UNKNOWN for its default; `CompilerEffortLevel` has the levels",
        choices=_EFFORT_LEVELS,
        affects_tracing=True,
    ),
    "memory_fitting_level": Setting(
        "UNKNOWN",
        "XLA's effort for programs that need little memory, UNKNOWN for its default",
        choices=_EFFORT_LEVELS,
        affects_tracing=True,
    ),
    "chip_table": Setting(
        "~/.config/shardwise/chips.toml",
        "the TOML file with the user's own chips, which `hardware=` finds by name and `shardwise calibrate` writes; "
        "plans use them for devices that are not in the built-in table",
    ),
    "checkpoint_scans": Setting(
        "none",
        "the intermediate values that derivatives of `scan` recompute, as with `checkpoint` of its body: none, all, or "
        'all but products with weights ("products"); a body that calls `checkpoint` itself is not changed',
        choices=("none", "products", "all"),
        affects_tracing=True,
    ),
    "verify_programs": Setting(
        False,
        "whether the invariants of every program are checked after each rewrite and derivative, not only on entry",
    ),
    "dump_to": Setting("", "the folder to which every compilation writes the program after each pass; empty for none"),
    "enable_compilation_cache": Setting(True, "whether to use the persistent cache in `compilation_cache_dir`"),
    "compilation_cache_dir": Setting(
        "",
        "the folder of the persistent compilation cache, or the URL of a prefix of an object store, such as "
        "s3://bucket/cache, which needs a `compilation_cache_key`; empty for none",
    ),
    "compilation_cache_key": Setting(
        "",
        "a secret for keyed digests of the cache's entries, so that other users may write to the folder or the store; "
        "entries with another key are compiled again",
    ),
    "compilation_cache_max_size": Setting(
        2**30, "the size limit of the cache in bytes; the least recently used entries are evicted; -1 for no limit"
    ),
    "persistent_cache_min_compile_time_secs": Setting(
        0.0, "the shortest compilation, in seconds, whose result is written to the cache"
    ),
    "launch_record_dir": Setting(
        "",
        "the folder where each of several processes records its last launches for `shardwise postmortem`; empty for "
        "none; `shardwise launch` sets it to the folder of its log files",
    ),
    "straggler_seconds": Setting(
        60.0,
        "the seconds for which one of several processes must delay the others until a warning names it; 0 for never",
    ),
    "share_binary_between_hosts": Setting(
        True, "whether one of several processes compiles a program that they run together, and the others load it"
    ),
    "share_binary_between_hosts_timeout_ms": Setting(
        1_200_000, "the milliseconds after which a process that waits for another one's executable compiles itself"
    ),
}

# JAX's environment variables of settings, which count if those of this package are not set.
_JAX_VARIABLES = {"num_cpu_devices": "JAX_NUM_CPU_DEVICES", "platforms": "JAX_PLATFORMS"}

# Other names of settings, and the settings that `transfer_guard` sets together.
ALIASES = {"platform_name": "platforms", "dump_ir_to": "dump_to"}
TRANSFER_GUARDS = tuple(name for name in SETTINGS if name.startswith("transfer_guard_"))


@final
class TraceSettings:
    """The values of the settings that affect tracing, interned so that cache keys compare identities."""

    __slots__ = ("values",)
    _interned: ClassVar[dict[tuple[Any, ...], "TraceSettings"]] = {}

    def __init__(self, values: tuple[Any, ...]):
        self.values = values

    @staticmethod
    def from_values(values: tuple[Any, ...]) -> "TraceSettings":
        return TraceSettings._interned.setdefault(values, TraceSettings(values))

    def __repr__(self) -> str:
        names = (*_TRACING_SETTINGS, "user_contexts")
        return ", ".join(f"{name}={value}" for name, value in zip(names, self.values, strict=True))


_TRACING_SETTINGS = tuple(name for name, setting in SETTINGS.items() if setting.affects_tracing)


@final
class State:
    """The settings that every call of a jitted function needs, behind one thread-local read."""

    __slots__ = ("disable_jit", "trace_settings")

    def __init__(self, disable_jit: bool, trace_settings: TraceSettings):
        self.disable_jit = disable_jit
        self.trace_settings = trace_settings


class _AllThreads:
    """Facts about all threads, which spare the hot path thread-local reads.

    `launch_checks`: whether any thread checks launches: NaN, infinities, keys, or that there are none.
    `state`: the common state of all threads, or None if some thread overrides a setting.
    """

    launch_checks = False
    state: State | None = None


all_threads = _AllThreads()


class Config(threading.local):
    """The current settings. The environment variable of `enable_x64` is `SHARDWISE_ENABLE_X64`, and so on.

    Attributes of the class are the values for all threads. Attributes of the thread-local instance are its overrides.
    """

    jax_compatibility: str
    enable_x64: bool
    explicit_x64_dtypes: str
    mesh_axis_types: str
    callback_errors: str
    default_matmul_precision: str | None
    numpy_dtype_promotion: str
    numpy_rank_promotion: str
    xla_metadata: str
    no_collectives: frozenset[str]
    default_prng_impl: str
    random_seed_offset: int
    in_shardings_mismatch: str
    default_device: Any
    target_platform: str
    platforms: str
    num_cpu_devices: int
    disable_jit: bool
    debug_nans: bool
    debug_infs: bool
    log_compiles: bool
    progress: bool
    explain_cache_misses: bool
    no_tracing: bool
    no_execution: bool
    check_tracer_leaks: bool
    check_static_indices: bool
    enable_custom_prng: bool
    legacy_prng_key: str
    debug_launch_order: bool
    debug_process_values: bool
    debug_key_reuse: bool
    remove_size_one_mesh_axis_from_type: bool
    transfer_guard_host_to_device: str
    transfer_guard_device_to_device: str
    transfer_guard_device_to_host: str
    memory_profile_lines: bool
    traceback_filtering: str
    memory_limit: int
    improve_plans: bool
    schedule_communication: bool
    own_kernels: bool
    optimization_level: str
    memory_fitting_level: str
    chip_table: str
    checkpoint_scans: str
    verify_programs: bool
    dump_to: str
    enable_compilation_cache: bool
    compilation_cache_dir: str
    compilation_cache_key: str
    compilation_cache_max_size: int
    persistent_cache_min_compile_time_secs: float
    launch_record_dir: str
    straggler_seconds: float
    share_binary_between_hosts: bool
    share_binary_between_hosts_timeout_ms: int
    user_contexts: ClassVar[Mapping[Any, Any]] = MappingProxyType({})  # the values of `make_user_context`
    state: State  # derived from the others

    _frozen: ClassVar[set[str]] = set()
    _updated: ClassVar[set[str]] = set()  # the settings that `update` has set
    _overriding: ClassVar[dict[int, dict[str, Any]]] = {}  # the `__dict__`s of the threads with overrides
    _lock: ClassVar[Any] = threading.RLock()

    def update(self, name: str, value: object) -> None:
        """Set a setting, in all threads that do not override it.

        Args:
            name: the setting, by JAX's name or without its prefix `jax_`.
            value: the new value.

        Raises:
            AttributeError: if there is no such setting.
            TypeError, ValueError: if the value is not valid.
            NotImplementedError: if the setting has another fixed value.
            RuntimeError: if the setting cannot change any more.
        """
        for setting, validated in self._validate(name, value).items():
            with Config._lock:
                changed = validated != getattr(Config, setting)
                setattr(Config, setting, validated)
                Config._updated.add(setting)
                if setting == "jax_compatibility" and changed:
                    _select_defaults()
                _derive()

    @contextmanager
    def override(self, name: str, value: object) -> Iterator[None]:
        """Return a context in which `name` is `value` in this thread.

        It raises the same errors as `update`, and a RuntimeError for `jax_compatibility`, which holds for all threads.
        """
        overrides = self.__dict__
        values = self._validate(name, value)
        if "jax_compatibility" in values:
            raise RuntimeError("config 'jax_compatibility' holds for all threads: set it with `config.update`")
        before = {setting: overrides.get(setting, _ABSENT) for setting in values}
        _set_overrides(overrides, values)
        try:
            yield
        finally:
            _set_overrides(overrides, before)

    def update_user_context(self, context: object, value: object) -> None:
        """Set the value of a context of the user's, in all threads that do not override one."""
        with Config._lock:
            Config.user_contexts = {**Config.user_contexts, context: value}
            _derive()

    @contextmanager
    def override_user_context(self, context: object, value: object) -> Iterator[None]:
        """Return a context in which a context of the user's has this value in this thread."""
        overrides = self.__dict__
        before = overrides.get("user_contexts", _ABSENT)
        _set_overrides(overrides, {"user_contexts": {**self.user_contexts, context: value}})
        try:
            yield
        finally:
            _set_overrides(overrides, {"user_contexts": before})

    def read(self, name: str) -> Any:
        """Return the value of a setting, by JAX's name or without its prefix."""
        setting = _short_name(name)
        if setting == "transfer_guard":
            values = {getattr(self, guard) for guard in TRANSFER_GUARDS}
            return values.pop() if len(values) == 1 else None
        if setting in FIXED_SETTINGS:
            return FIXED_SETTINGS[setting][0][0]
        if setting not in SETTINGS:
            raise _unknown_setting_error(name, setting)
        return getattr(self, setting)

    @property
    def is_exact(self) -> bool:
        """Whether programs behave exactly as in JAX."""
        return self.jax_compatibility == "exact"

    def parse_flags_with_absl(self) -> None:
        """Do nothing: settings are no flags of absl. Tests of libraries written for JAX call it."""

    def __repr__(self) -> str:
        """Return the values of all settings in this thread, one on each line."""
        return "\n".join(["config:", *(f"  {name} = {getattr(self, name)!r}" for name in SETTINGS)])

    def __dir__(self) -> list[str]:
        """List the methods, and the settings under their names here and in JAX."""
        names = {*SETTINGS, *ALIASES, *FIXED_SETTINGS, "transfer_guard"}
        return sorted({*super().__dir__(), *names, *(f"jax_{name}" for name in names)})

    def __getattr__(self, name: str) -> Any:
        """Return a setting by JAX's name, such as `config.jax_enable_x64`."""
        if name.startswith("__"):
            raise AttributeError(name)
        return self.read(name)

    def __setattr__(self, name: str, value: object) -> None:
        self.update(name, value)

    def __delattr__(self, name: str) -> None:
        """Reset a setting to its initial value."""
        for setting in self._validate(name, self.read(name)):
            self.update(setting, _initial_value(setting))
            Config._updated.discard(setting)

    def freeze(self, event: str) -> None:
        """Freeze the settings that cannot change after `event`."""
        self._frozen.add(event)

    def _validate(self, name: str, value: object) -> dict[str, Any]:
        """Return the settings that `name` sets, with their validated values; none for a fixed setting."""
        if not isinstance(name, str):
            raise TypeError(f"config: the name of a setting must be a string, not {name!r}")
        short = _short_name(name)
        if short == "transfer_guard":
            level = "allow" if value is None else value
            return {guard: SETTINGS[guard].validate(guard, level) for guard in TRANSFER_GUARDS}
        if short in FIXED_SETTINGS:
            values, reason = FIXED_SETTINGS[short]
            if value not in values:
                raise NotImplementedError(
                    f"config {short!r} must be {' or '.join(map(repr, values))}, not {value!r}: {reason}"
                )
            return {}
        if short not in SETTINGS:
            raise _unknown_setting_error(name, short)
        setting = SETTINGS[short]
        validated = setting.validate(short, value)
        if setting.frozen_by in self._frozen and validated != getattr(self, short):
            raise RuntimeError(
                f"config {short!r} cannot change from {getattr(self, short)} to {validated} after {setting.frozen_by}: "
                "set it at the start of the program, or in the environment"
            )
        return {short: validated}


def _short_name(name: str) -> str:
    """Return the name of a setting in `SETTINGS` from its name there, JAX's name or an alias."""
    short = name if name in SETTINGS else name.removeprefix("jax_")
    return ALIASES.get(short, short)


def _unknown_setting_error(name: str, short: str) -> AttributeError:
    near = get_close_matches(short, SETTINGS, 1)
    hint = f" Did you mean {near[0]!r}?" if near else f" Settings: {', '.join(SETTINGS)}."
    return AttributeError(f"config has no setting {name!r}.{hint}")


def _set_overrides(overrides: dict[str, Any], values: dict[str, Any]) -> None:
    """Set or, where a value is `_ABSENT`, remove overrides of a thread."""
    with Config._lock:
        for name, value in values.items():
            overrides.pop(name, None)
            if value is not _ABSENT:
                overrides[name] = value
        if overrides.keys() - {"state"}:
            Config._overriding[id(overrides)] = overrides
        else:
            overrides.pop("state", None)
            Config._overriding.pop(id(overrides), None)
        _derive()


def _derive() -> None:
    """Update what is derived from the settings: the states, and `all_threads`."""
    Config.state = _state({})
    all_threads.state = None if Config._overriding else Config.state
    for overrides in Config._overriding.values():
        overrides["state"] = _state(overrides)
    all_threads.launch_checks = any(
        overrides.get(name, getattr(Config, name))
        for overrides in ({}, *Config._overriding.values())
        for name in ("debug_nans", "debug_infs", "debug_key_reuse", "no_execution")
    )


def _state(overrides: dict[str, Any]) -> State:
    def value(name: str) -> Any:
        return overrides.get(name, getattr(Config, name))

    settings = *map(value, _TRACING_SETTINGS), frozenset(value("user_contexts").items())
    return State(value("disable_jit"), TraceSettings.from_values(settings))


def _select_defaults() -> None:
    """Set the settings that the user has not set to the defaults of the current `jax_compatibility`.

    The caches are emptied, because the types of results depend on it.
    """
    for name, setting in SETTINGS.items():
        if setting.has_exact_default and name not in Config._updated:
            setattr(Config, name, _initial_value(name))
    clear_all()


def _initial_value(name: str) -> Any:
    """Return the value of a setting from the environment, or its default."""
    variable = f"SHARDWISE_{name.upper()}"
    text = os.environ.get(variable)
    if name in _JAX_VARIABLES and text is None:
        variable = _JAX_VARIABLES[name]
        text = os.environ.get(variable)
        text = None if text == "-1" else text  # JAX's default of the number of devices
    if name == "num_cpu_devices" and text is None:  # JAX programs also set it by an XLA flag
        flags = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if flag.startswith(f"{_HOST_DEVICES}=")]
        if flags:
            variable, _, text = flags[-1].partition("=")
    setting = SETTINGS[name]
    if text is not None:
        return setting.parse(variable, text)
    return (
        setting.exact_default if setting.has_exact_default and Config.jax_compatibility == "exact" else setting.default
    )


def _initial_config() -> Config:
    for name in SETTINGS:
        setattr(Config, name, _initial_value(name))
    _derive()
    return Config()


config = _initial_config()


def cached_by_settings(maxsize: int) -> Callable[[_Function], _Function]:
    """LRU cache whose keys include the settings that affect tracing."""

    def decorate(function: _Function) -> _Function:
        @registered_cache(maxsize)
        def lookup(trace_settings: TraceSettings, *args: object, **keywords: object) -> Any:
            return function(*args, **keywords)

        @wraps(function)
        def call(*args: object, **keywords: object) -> Any:
            return lookup(config.state.trace_settings, *args, **keywords)

        return call  # type: ignore[return-value]

    return decorate
