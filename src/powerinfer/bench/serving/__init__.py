"""Measuring servers: many clients at once, ours and llama.cpp's in turns."""
