"""Functions on meshes: placement of arrays, constraints, manual regions, and pmap."""
