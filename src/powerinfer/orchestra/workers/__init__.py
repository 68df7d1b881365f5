"""Those who do the work: models of this machine, models elsewhere."""
