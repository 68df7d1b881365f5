"""Chooses replicas: the one that knows a prompt's beginning, or the least busy if it is full."""

from ray.serve.request_router import FIFOMixin, PendingRequest, RequestRouter, RunningReplica

from powerinfer.serve.ray.prefix import preferred

__all__ = ["PrefixRouter"]


class PrefixRouter(FIFOMixin, RequestRouter):  # type: ignore[misc]  # Ray may be missing
    """Reads the key from the first argument of a request; see `prefix_key`."""

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """Rank the replicas; Ray takes the least busy of a rank, if it has room."""
        key = pending_request.args[0] if pending_request and pending_request.args else None
        if not isinstance(key, str):
            return [list(candidate_replicas)]
        by_name = {str(replica.replica_id): replica for replica in candidate_replicas}
        order = [by_name[name] for name in preferred(key, by_name)]
        return [rank for rank in (order[:1], order[1:]) if rank]
