"""Building blocks of parallel models: differentiable functions that communicate over a named mesh axis."""

from shardwise.lazy import set_public_names
from shardwise.parallel.pipeline import Pipeline as Pipeline
from shardwise.parallel.pipeline import pipeline as pipeline
from shardwise.parallel.pipeline_schedule import Schedule as Schedule
from shardwise.parallel.pipeline_schedule import pipeline_schedule as pipeline_schedule

__all__ = ["Pipeline", "Schedule", "pipeline", "pipeline_schedule"]

set_public_names(__name__, __all__)
