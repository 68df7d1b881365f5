"""CPU and GPU together: where each operation runs, and feed-forward blocks on both."""
