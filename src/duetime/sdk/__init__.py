"""The SDK, which runs in a tenant's own processes: clients, workers, and `once`.

It speaks to duetime over HTTP only and imports nothing from the server, so
that a process that submits or works does not need the server's code.
"""
