"""Handling of overflow and NaN in numpy."""

import numpy as np

__all__ = ["ignore_float_errors"]

# Damaged files hold infinities and NaN. The engine reports what comes of them; numpy's warnings
# would not help. A decorator, since almost every operation can meet them.
ignore_float_errors = np.errstate(all="ignore")
