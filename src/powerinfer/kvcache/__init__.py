"""Keys and values of many sequences, in blocks that are shared and reused."""

from powerinfer.kvcache.kv_cache import BLOCK_SIZE, KVCache
from powerinfer.kvcache.prefix_tree import PrefixMatch, PrefixTree

__all__ = ["BLOCK_SIZE", "KVCache", "PrefixMatch", "PrefixTree"]
