"""Settings that every connection of ours has, whoever opened it."""

#: A cached generic plan made while a table was empty reads it from end to end,
#: so the hot statements leave the planner no choice but their index plan.
PLANNER_SETTINGS: dict[str, str] = {
    "search_path": "duetime, public",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
}
