"""One file per number format; the file name is the format's name and it exports ``FORMAT``."""
