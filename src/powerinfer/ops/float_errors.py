"""How numpy is to treat numbers that overflow or are NaN."""

import numpy as np

__all__ = ["quietly"]

# Damaged files hold infinities and NaN. The engine reports what comes of them; numpy's warnings
# would not help. A decorator, because almost every operation can meet them.
quietly = np.errstate(all="ignore")
