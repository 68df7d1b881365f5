"""How well policies do: tasks with known answers, simulated pools, baselines, reports."""
