"""Meshes, specs, shardings, layouts and factor rules. Nothing here depends on the IR or on the runtime."""
