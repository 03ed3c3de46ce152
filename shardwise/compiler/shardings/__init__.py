"""Meshes, specs, layouts and factor rules, as names and integers. Nothing here depends on the IR or on devices."""
