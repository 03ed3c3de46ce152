"""Program + pinned layouts → ShardedProgram: for every equation, the ways it could lie on the mesh, and why."""
