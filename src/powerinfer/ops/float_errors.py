"""Handling of overflow and NaN in numpy."""

import numpy as np

__all__ = ["quietly"]

# Damaged files hold infinities and NaN. The engine reports what comes of them; numpy's warnings
# would not help. A decorator, since almost every operation can meet them.
quietly = np.errstate(all="ignore")
