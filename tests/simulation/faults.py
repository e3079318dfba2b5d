"""Rules that can be switched off, to see that the simulation notices."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Faults:
    """One rule switched off each: the simulation has to notice."""

    #: A row reported while its lane is being claimed is forgotten.
    forgets_wakes_in_flight: bool = False
    #: A row reported behind a lane's hint does not lower it.
    keeps_hint_on_wake: bool = False
    #: Ids are stored however old they are.
    stores_old_ids: bool = False
    #: A note is firm although a transaction with a number above the snapshot's is open.
    trusts_snapshot_end: bool = False
    #: A holder is ended although it has beaten since it was looked at.
    lapses_without_counter: bool = False
    #: A database that was away counts as silence of the holders.
    lapses_while_away: bool = False
    #: Whoever reports an attempt ends it.
    settles_for_anybody: bool = False
    #: What a holder has started is remembered by task, not by attempt.
    charges_by_task: bool = False
    #: The database says of ids that they are too old while a commit with them is in doubt.
    mints_anew_in_doubt: bool = False
    #: Rows are claimed a little before their time.
    claims_early: bool = False
    #: Rows are claimed that are due by what the node knows of the database's clock, although it went back since.
    claims_by_the_nodes_clock: bool = False
    #: What ended holders left behind is looked for among those that ended lately only.
    sweeps_lately_ended: bool = False
    #: A claim is taken without a lock.
    claims_without_lock: bool = False
    #: A worker begins what it was handed out, however late the answer to its poll arrived.
    begins_late: bool = False
    #: A verb commits itself, so that a copy that was given up is carried out when the server gets to it.
    verbs_commit_themselves: bool = False
    #: A verb is repeated while its first copy is in doubt.
    repeats_verbs_in_doubt: bool = False
    #: Attempts that run are taken for ended, so that others start in their places.
    takes_what_runs_for_ended: bool = False
    #: A schedule has a turn that it has had, and its times are fired although they are noted.
    fires_again: bool = False
