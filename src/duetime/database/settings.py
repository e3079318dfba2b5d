"""Settings of every connection of duetime, whichever code opens it."""

#: A cached generic plan that was made while a table was empty reads the whole table, so the frequent statements leave
#: the planner only their index plan.
PLANNER_SETTINGS: dict[str, str] = {
    "search_path": "duetime, public",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
}
