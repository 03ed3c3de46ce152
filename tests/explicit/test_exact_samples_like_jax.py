"""Random shardings of operands in exact mode: JAX and Shardwise accept the same calls, with the same types."""

import json

import pytest

from tests.test_exact_jax import run_python

pytestmark = [pytest.mark.jax, pytest.mark.slow]


def test_the_same_calls_are_accepted_with_the_same_types():
    variables = {"SHARDWISE_JAX_COMPATIBILITY": "exact", "JAX_NUM_CPU_DEVICES": "8"}
    assert json.loads(run_python("-m", "tests.explicit.exact_samples", "8", **variables)) == []
