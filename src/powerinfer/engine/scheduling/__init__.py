"""Many texts on one model: who joins a step, which tokens it computes, which blocks they keep."""
