"""Array semantics that are not ops: operands, promotion, indexing, and the methods that Array and Tracer share."""
