"""All ops, grouped into families; a class holds all rules of an op. CONTRIBUTING.md shows how to add an op."""
