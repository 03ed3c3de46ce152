"""Search over plans: plan a program again with other constraints, and keep the cheapest plan."""
