"""The SPMD partitioner: from a sharded program and its plan to the program of one device, with explicit collectives."""
