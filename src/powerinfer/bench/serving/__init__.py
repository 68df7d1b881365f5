"""Load tests of servers with many clients, powerinfer and llama.cpp in turns."""
