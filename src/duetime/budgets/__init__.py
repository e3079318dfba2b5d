"""Token buckets that nodes share: how much of a rate each node may hand out.

`contract` says what a store of budgets does, `adapters` lists the stores;
`allowance` is one node's part, which asks the store about once a second.
"""
