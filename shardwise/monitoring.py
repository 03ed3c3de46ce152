"""jax.monitoring: events, and listeners to them.

Libraries record events. Shardwise records `/jax/core/compile/backend_compile_duration`, as JAX does: the seconds that
XLA took for a program, with its name as `fun_name`.
"""

from collections.abc import Callable
from threading import Lock
from typing import Any

from shardwise.base.docstrings import Family, Parameter, documented
from shardwise.base.lazy import publish

_lock = Lock()
_event_listeners: list[Callable[..., None]] = []
_duration_listeners: list[Callable[..., None]] = []
_scalar_listeners: list[Callable[..., None]] = []
_time_span_listeners: list[Callable[..., None]] = []


_RECORD = Family(
    {"event": "the name of the event.", "**kwargs": "what the listeners get by keyword."},
    raises=["Exception: what a listener raises."],
)
_REGISTER = Family({"callback": Parameter(error="TypeError: if {} is not callable.")})
_UNREGISTER = Family({"callback": "the function."})


@documented(_RECORD)
def record_event(event: str, **kwargs: str | int) -> None:
    """Call all listeners to events.

    Example:
        >>> jax.monitoring.record_event("/data/batch", size=8)
    """
    _notify(_event_listeners, event, metadata=kwargs)


@documented(_RECORD)
def record_event_duration_secs(event: str, duration: float, **kwargs: str | int) -> None:
    """Call all listeners to durations.

    Args:
        duration: how long it took, in seconds.

    Example:
        >>> jax.monitoring.record_event_duration_secs("/data/batch", 0.5)
    """
    _notify(_duration_listeners, event, duration, metadata=kwargs)


@documented(_RECORD)
def record_event_time_span(event: str, start_time: float, end_time: float, **kwargs: str | int) -> None:
    """Call all listeners to time spans.

    Args:
        start_time: when it began, in seconds.
        end_time: when it ended.

    Example:
        >>> jax.monitoring.record_event_time_span("/data/batch", 0.5, 0.75)
    """
    _notify(_time_span_listeners, event, start_time, end_time, metadata=kwargs)


@documented(_RECORD)
def record_scalar(event: str, value: float, **kwargs: str | int) -> None:
    """Call all listeners to scalars.

    Args:
        value: the number.

    Example:
        >>> jax.monitoring.record_scalar("/loss", 0.5)
    """
    _notify(_scalar_listeners, event, value, metadata=kwargs)


@documented(_REGISTER)
def register_event_listener(callback: Callable[..., None]) -> None:
    """Add a function that is called with the name of each event.

    Args:
        callback: the function `(event, **metadata)`.

    Example:
        >>> jax.monitoring.register_event_listener(lambda event, **metadata: print(event))
        >>> jax.monitoring.record_event("/start")
        /start
        >>> jax.monitoring.clear_event_listeners()
    """
    _register(_event_listeners, callback)


@documented(_REGISTER)
def register_event_duration_secs_listener(callback: Callable[..., None]) -> None:
    """Add a function that is called with the name and the duration of each event.

    Args:
        callback: the function `(event, duration, **metadata)`.

    Example:
        >>> jax.monitoring.register_event_duration_secs_listener(lambda event, seconds, **metadata: print(seconds))
        >>> jax.monitoring.record_event_duration_secs("/step", 0.5)
        0.5
        >>> jax.monitoring.clear_event_listeners()
    """
    _register(_duration_listeners, callback)


@documented(_REGISTER)
def register_event_time_span_listener(callback: Callable[..., None]) -> None:
    """Add a function that is called with the name, the start and the end of each time span.

    Args:
        callback: the function `(event, start_time, end_time, **metadata)`.

    Example:
        >>> jax.monitoring.register_event_time_span_listener(lambda event, start, end, **metadata: print(end - start))
        >>> jax.monitoring.record_event_time_span("/step", 0.5, 0.75)
        0.25
        >>> jax.monitoring.clear_event_listeners()
    """
    _register(_time_span_listeners, callback)


@documented(_REGISTER)
def register_scalar_listener(callback: Callable[..., None]) -> None:
    """Add a function that is called with the name and the value of each scalar.

    Args:
        callback: the function `(event, value, **metadata)`.

    Example:
        >>> jax.monitoring.register_scalar_listener(lambda event, value, **metadata: print(value))
        >>> jax.monitoring.record_scalar("/loss", 0.5)
        0.5
        >>> jax.monitoring.clear_event_listeners()
    """
    _register(_scalar_listeners, callback)


@documented(_UNREGISTER, raises=["ValueError: if it is not a listener to events."])
def unregister_event_listener(callback: Callable[..., None]) -> None:
    """Remove a function that was added by `register_event_listener`.

    Example:
        >>> listener = lambda event, **metadata: print(event)
        >>> jax.monitoring.register_event_listener(listener)
        >>> jax.monitoring.unregister_event_listener(listener)
        >>> jax.monitoring.record_event("/start")
    """
    _unregister(_event_listeners, callback, "events")


@documented(_UNREGISTER, raises=["ValueError: if it is not a listener to durations."])
def unregister_event_duration_listener(callback: Callable[..., None]) -> None:
    """Remove a function that was added by `register_event_duration_secs_listener`.

    Example:
        >>> listener = lambda event, seconds, **metadata: print(seconds)
        >>> jax.monitoring.register_event_duration_secs_listener(listener)
        >>> jax.monitoring.unregister_event_duration_listener(listener)
        >>> jax.monitoring.record_event_duration_secs("/step", 0.5)
    """
    _unregister(_duration_listeners, callback, "durations")


@documented(_UNREGISTER, raises=["ValueError: if it is not a listener to time spans."])
def unregister_event_time_span_listener(callback: Callable[..., None]) -> None:
    """Remove a function that was added by `register_event_time_span_listener`.

    Example:
        >>> listener = lambda event, start, end, **metadata: print(end - start)
        >>> jax.monitoring.register_event_time_span_listener(listener)
        >>> jax.monitoring.unregister_event_time_span_listener(listener)
        >>> jax.monitoring.record_event_time_span("/step", 0.5, 0.75)
    """
    _unregister(_time_span_listeners, callback, "time spans")


@documented(_UNREGISTER, raises=["ValueError: if it is not a listener to scalars."])
def unregister_scalar_listener(callback: Callable[..., None]) -> None:
    """Remove a function that was added by `register_scalar_listener`.

    Example:
        >>> listener = lambda event, value, **metadata: print(value)
        >>> jax.monitoring.register_scalar_listener(listener)
        >>> jax.monitoring.unregister_scalar_listener(listener)
        >>> jax.monitoring.record_scalar("/loss", 0.5)
    """
    _unregister(_scalar_listeners, callback, "scalars")


def clear_event_listeners() -> None:
    """Remove all listeners.

    Example:
        >>> jax.monitoring.clear_event_listeners()
    """
    with _lock:
        for listeners in (_event_listeners, _duration_listeners, _time_span_listeners, _scalar_listeners):
            listeners.clear()


def _register(listeners: list[Callable[..., None]], callback: Callable[..., None]) -> None:
    if not callable(callback):
        raise TypeError(f"a listener must be a function, not {callback!r}")
    with _lock:
        listeners.append(callback)


def _unregister(listeners: list[Callable[..., None]], callback: Callable[..., None], kind: str) -> None:
    with _lock:
        if callback not in listeners:
            raise ValueError(f"{callback!r} is not a listener to {kind}")
        listeners.remove(callback)


def _notify(listeners: list[Callable[..., None]], *args: object, metadata: dict[str, Any]) -> None:
    for callback in tuple(listeners):
        callback(*args, **metadata)


publish(__name__)
