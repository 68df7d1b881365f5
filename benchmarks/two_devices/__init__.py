"""Parts of the benchmarks of CPU and GPU together: sizes and speeds, and the compared plans."""
