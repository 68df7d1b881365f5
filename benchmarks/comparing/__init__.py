"""What compare.py needs: the engines that run in turns, and comparisons of sparse settings."""
