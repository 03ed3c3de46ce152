"""monitoring: events reach the listeners of their kind, until these are removed. Compilations are recorded."""

import pytest

import shardwise as sw
import shardwise.numpy as jnp

COMPILE = "/jax/core/compile/backend_compile_duration"


@pytest.fixture
def monitoring():
    yield sw.monitoring
    sw.monitoring.clear_event_listeners()


def test_listeners_get_the_events_of_their_kind(monitoring):
    heard = []
    monitoring.register_event_listener(lambda event, **metadata: heard.append(("event", event, metadata)))
    monitoring.register_event_duration_secs_listener(lambda *args, **metadata: heard.append((*args, metadata)))
    monitoring.register_scalar_listener(lambda *args, **metadata: heard.append((*args, metadata)))
    monitoring.record_event("/data/batch", size=8)
    monitoring.record_event_duration_secs("/data/read", 0.5, source="disk")
    monitoring.record_scalar("/data/queue", 3.0)
    expected = [
        ("event", "/data/batch", {"size": 8}),
        ("/data/read", 0.5, {"source": "disk"}),
        ("/data/queue", 3.0, {}),
    ]
    assert heard == expected
    monitoring.clear_event_listeners()
    monitoring.record_event("/data/batch")
    assert heard == expected


def test_what_a_listener_raises_reaches_the_program(monitoring):
    def fail(event):
        raise KeyError(event)

    monitoring.register_event_listener(fail)
    with pytest.raises(KeyError, match="/data/batch"):
        monitoring.record_event("/data/batch")


@pytest.fixture
def durations():
    """The name, the seconds and the metadata of every duration that is recorded during the test."""
    found = []

    def listen(event, seconds, **metadata):
        found.append((event, seconds, metadata))

    sw.monitoring.register_event_duration_secs_listener(listen)
    yield found
    sw.monitoring.unregister_event_duration_listener(listen)


def test_every_compilation_is_recorded_once(durations):
    @sw.jit
    def cube(x):
        return x * x * x

    x, longer = jnp.ones(3), jnp.ones(4)
    durations.clear()
    for argument in (x, x, longer):
        cube(argument)
    assert [(event, metadata) for event, _, metadata in durations] == [(COMPILE, {"fun_name": "jit(cube)"})] * 2
    assert all(seconds > 0 for _, seconds, _ in durations)


@pytest.mark.jax
def test_name_and_metadata_are_those_of_jax(durations):
    import jax  # noqa: PLC0415

    theirs = []
    jax.monitoring.register_event_duration_secs_listener(lambda event, _, **metadata: theirs.append((event, metadata)))
    jax.jit(lambda x: x + 1)(1.0)
    jax.monitoring.clear_event_listeners()
    sw.jit(lambda x: x + 1)(1.0)
    (compilation,) = [(event, metadata) for event, metadata in theirs if "backend_compile" in event]
    assert (durations[-1][0], durations[-1][2]) == compilation


@pytest.mark.parametrize(
    "register, unregister, record",
    [
        ("register_event_listener", "unregister_event_listener", lambda: sw.monitoring.record_event("/a")),
        ("register_scalar_listener", "unregister_scalar_listener", lambda: sw.monitoring.record_scalar("/a", 1.0)),
        (
            "register_event_duration_secs_listener",
            "unregister_event_duration_listener",
            lambda: sw.monitoring.record_event_duration_secs("/a", 1.0),
        ),
    ],
    ids=["event", "scalar", "duration"],
)
def test_listeners_that_are_removed_are_not_called(register, unregister, record):
    calls = []

    def listen(*event, **metadata):
        calls.append(event)

    getattr(sw.monitoring, register)(listen)
    record()
    getattr(sw.monitoring, unregister)(listen)
    record()
    assert len(calls) == 1
    with pytest.raises(ValueError, match="is not a listener"):
        getattr(sw.monitoring, unregister)(listen)
