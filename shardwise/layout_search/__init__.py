"""Search for a mesh and the layouts of all arguments of a step: `autoshard`."""
