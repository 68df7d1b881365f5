"""Which neurons lie on the GPU: statistics, cost model, solvers, plans and their files."""
