"""The trace state: equal while the same functions are being traced, as Flax compares it."""

import shardwise as sw
from shardwise.api.jaxprs.trace_state import find_top_trace, get_opaque_trace_state, trace_state_clean


def test_the_state_changes_with_the_functions_that_are_traced():
    states = []

    def function(x):
        states.extend(get_opaque_trace_state(convention="flax") for _ in range(2))
        assert not trace_state_clean() and x._trace is find_top_trace(None)

        @sw.jit
        def inner(y):
            states.append(get_opaque_trace_state())
            return y

        result = inner(x)
        states.append(get_opaque_trace_state())
        return result

    outside = get_opaque_trace_state(convention="nnx")
    sw.jit(function)(1.0)
    first, second, nested, after = states
    assert first == second == after and hash(first) == hash(second)
    assert len({outside, first, nested}) == 3
    assert outside == get_opaque_trace_state() and trace_state_clean() and find_top_trace(None) is None
