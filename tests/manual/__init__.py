"""shard_map and its collectives, compared with loops over devices in numpy, with one device, and with JAX."""
