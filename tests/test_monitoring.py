"""monitoring: events reach the listeners of their kind, until these are cleared."""

import pytest

import shardwise as sw


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
