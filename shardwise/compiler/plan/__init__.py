"""The choice of a layout for every value, by cost: LayoutProblem → Plan (plain data)."""
