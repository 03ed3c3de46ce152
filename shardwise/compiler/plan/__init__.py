"""The choice of a layout for every value, by cost: ShardedProgram → Plan (plain data)."""
