"""Nodes that share the shards: which nodes are there, which one feeds which shard, and how they talk to each other.

Everything here is advice.  Two nodes that feed one shard cannot claim one row, and a
shard that no node feeds for a moment keeps its rows: the rows make it safe, and a
wrong view only costs time.
"""
