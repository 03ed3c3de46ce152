"""Meshes, specs, layouts and factor rules: names and integers. Nothing here knows the IR or a device."""
