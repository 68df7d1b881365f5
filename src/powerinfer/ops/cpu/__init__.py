"""The native CPU backend, on the C++ extension."""
