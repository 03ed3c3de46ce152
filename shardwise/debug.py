"""Looking at arrays on many devices."""

from shardwise.explain.picture import visualize_array_sharding, visualize_sharding

__all__ = ["visualize_array_sharding", "visualize_sharding"]
