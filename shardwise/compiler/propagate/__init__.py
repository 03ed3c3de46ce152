"""Propagation: from a Program and pins to a ShardedProgram, with the candidates of every equation on every axis."""
