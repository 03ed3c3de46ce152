"""Foundations that every layer may import: the jaxlib adapter, settings, caches, lazy imports, and the user's line."""
