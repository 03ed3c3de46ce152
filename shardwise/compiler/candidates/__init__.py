"""Propagation: from a Program and pins to a LayoutProblem, with the candidates of every equation on every axis."""
