"""Shardwise side by side with JAX, in one run on one machine: counts that have no noise, and ratios of times."""
