"""One file per architecture; the file name is the value of `general.architecture`."""
