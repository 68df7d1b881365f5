"""Placement of neurons on the GPU: statistics, cost model, solvers, plans and their files."""
