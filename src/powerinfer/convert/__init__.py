"""Makes model files from other model files: packing into faster layouts."""
