"""`powerinfer serve` on a machine whose memory is said to have ROOM_BYTES for models.

Run as a program; takes the flags of `powerinfer serve`.
"""

import os
import sys
from unittest.mock import patch

from powerinfer.cli.main import main
from powerinfer.loading.loader import WORKING_BYTES
from powerinfer.serve import model_pool

if __name__ == "__main__":
    room = int(os.environ["ROOM_BYTES"]) + WORKING_BYTES
    with patch.object(model_pool, "available_memory_bytes", lambda: room):
        main(["serve", *sys.argv[1:]], prog_name="powerinfer")
