"""Random programs × meshes × shardings: every stage must agree with the program on one device."""
