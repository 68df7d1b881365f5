"""Pictures, tables and lines of the pages, made from `benchmarks/results`."""
