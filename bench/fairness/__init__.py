"""What duetime promises about sharing, measured on a real node: `python -m bench.fairness`.

    1  noisy      a tenant with 200,000 tasks beside nine with one a second each
    2  weights    tenants of weight 1, 2 and 4, and one of them falls idle
    3  classes    a flood of `critical` beside `low`, in one tenant
    4  rates      a key of 100 a second with 100,000 tasks waiting, beside other queues
    5  caps       a queue of five at once on three processes, while processes are killed
    6  crowd      two thousand tenants with one task each, all due at once
    7  hostile    an attacker beside twenty quiet tenants

Each scenario has a node of its own with an embedded PostgreSQL, and programs of
this folder beside it, each in a process of its own: `target` (the HTTP target),
`hands` and `guarded` (SDK workers), `flood` (submits many tasks), `attack` (the attacker).
Nothing that was started outlives it.
"""
