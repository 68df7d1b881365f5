"""Tasks that `powerinfer eval` knows by name: the file name is the key, exporting ``TASK``."""
