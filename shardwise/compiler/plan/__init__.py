"""The choice of a layout for every value, by cost: LayoutProblem → LayoutPlan (plain data)."""
