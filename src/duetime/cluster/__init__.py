"""Nodes that share the shards: who is there, who feeds what, and how they speak with each other.

Everything here is advice.  Two nodes that feed one shard cannot claim one row,
and a shard that nobody feeds for a moment keeps its rows: safety is in the rows,
and what is lost by a wrong view is time.
"""
