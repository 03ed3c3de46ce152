"""Failures: the published rates, and values that are out of range."""

import math

import pytest

import shardwise as sw


def test_the_default_rates_are_those_of_llama_3():
    failures = sw.Failures()
    assert failures.per_device_day * 16384 * failures.days == pytest.approx(419)
    assert failures.wide_share * 419 == pytest.approx(35)
    assert failures.node_share + failures.wide_share == pytest.approx(0.78)
    assert failures.nodes_of(16384) == 2048 and failures.spares_of(16384) == 8
    assert sw.Failures(spare_nodes=3).spares_of(16384) == 3


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"days": 0}, "days must be positive, not 0"),
        ({"days": math.inf}, "days must be finite and not negative"),
        ({"per_device_day": -1.0}, "per_device_day must be finite and not negative, not -1.0"),
        ({"node_share": 0.7, "wide_share": 0.4}, r"node_share \(0.7\) and wide_share \(0.4\)"),
        ({"trials": 2.5}, "trials must be an integer, not 2.5"),
        ({"seed": "a"}, "seed must be an integer, not 'a'"),
        ({"write_seconds": "10"}, "write_seconds must be a number, not '10'"),
        ({"write_seconds": None}, "write_seconds must be a number, not None"),
        ({"checkpoint_interval": 0}, "checkpoint_interval must be at least 1e-06 seconds, or None"),
        ({"snapshot_interval": 1e-320}, "snapshot_interval must be at least 1e-06 seconds"),
        ({"days": 10**400}, "days must be at most 1e.12"),
        ({"seed": -(10**400)}, "seed must be at most 1e.12"),
        ({"snapshot_interval": 60, "checkpoint_interval": 30}, "snapshot_interval .60. must not exceed"),
        ({"policies": ()}, "policies must have at least one"),
    ],
)
def test_values_out_of_range_are_errors(values, message):
    with pytest.raises(ValueError, match=message):
        sw.Failures(**values)


@pytest.mark.parametrize("policies", [("disk",), sw.RecoveryPolicy("x"), "disk"])
def test_policies_of_another_type_are_errors(policies):
    with pytest.raises(TypeError, match="policies must be a tuple of RecoveryPolicy"):
        sw.Failures(policies=policies)


def test_shrinking_needs_snapshots():
    with pytest.raises(ValueError, match=r"RecoveryPolicy 'x': shrinks=True needs snapshots=True"):
        sw.RecoveryPolicy("x", shrinks=True)
