"""Which neurons go to the GPU: statistics, cost model, solvers, plans and their files."""
