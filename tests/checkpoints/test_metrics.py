"""Metrics are exact after a round trip."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from shardwise.checkpoints.metrics import checked_metrics, decode_metrics, encode_metrics
from shardwise.errors import CheckpointError


def test_metrics_are_exact_after_a_round_trip():
    metrics = checked_metrics({"loss": np.float32(0.1), "steps": 3, "worst": math.inf, "bad": math.nan})
    saved = SimpleNamespace(metadata={"metrics": encode_metrics(metrics)})
    restored = decode_metrics(saved, "step-1")
    assert math.isnan(restored.pop("bad")) and math.isnan(metrics.pop("bad"))
    assert restored == metrics == {"loss": float(np.float32(0.1)), "steps": 3.0, "worst": math.inf}


def test_other_metadata_is_an_error():
    with pytest.raises(CheckpointError, match="step-1 was not saved by a Manager"):
        decode_metrics(SimpleNamespace(metadata={"metrics": {"loss": 1}}), "step-1")


def test_metrics_are_numbers_by_name():
    with pytest.raises(TypeError, match="the metric 'loss' is not a number"):
        checked_metrics({"loss": "high"})
    with pytest.raises(TypeError, match="metrics are a dict of numbers by name"):
        checked_metrics([1.0])
