"""ShardedProgram + Plan → LocalProgram: one device's program with explicit collectives; and its simulation in numpy."""
