"""Manual regions: shard_map and the collectives in it, against loops over devices in numpy, one device, and JAX."""
