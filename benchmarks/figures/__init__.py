"""What the pages show of the results: pictures and the lines that quote figures."""
