"""Reports of a plan: collectives with reasons, the timeline, memory, and what a further constraint would change."""
