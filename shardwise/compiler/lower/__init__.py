"""LocalProgram → StableHLO text."""
