"""The schedule of communication: which collectives share a launch, and when they run."""
