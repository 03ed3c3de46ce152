"""Array semantics above ops: operand conversion, promotion, indexing, and the methods of Array and Tracer."""
