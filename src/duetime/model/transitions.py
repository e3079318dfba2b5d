"""Which move takes a task from which state to which: the one table.

Every move deletes the row that the state stands for and inserts the next one,
so a move whose state is not listed here finds nothing to take.

The statements make the moves; this table says what they allow.  Steering reads it
to see whether a move that found nothing is worth another try, the command line to
list the tasks that a command applies to, and a test holds the statements to it.
`BLOCKED` stands for a task that waits for another one: the schema and this table
have it, but nothing makes a task blocked yet.
"""

import enum

from duetime.model.task import TaskState

_S = TaskState
#: Waiting in `due`, whichever state name users see for it.
WAITING = frozenset({_S.SCHEDULED, _S.READY, _S.RETRYING})


class Move(enum.StrEnum):
    CLAIM = "claim"
    SUCCEED = "succeed"
    FAIL = "fail"
    SNOOZE = "snooze"
    LAPSE = "lapse"
    RELEASE = "release"
    EXPIRE = "expire"
    CANCEL = "cancel"
    PAUSE = "pause"
    RESUME = "resume"
    RESCHEDULE = "reschedule"
    RUN_NOW = "run_now"
    REDRIVE = "redrive"
    DROP = "drop"


TRANSITIONS: dict[Move, tuple[frozenset[TaskState], frozenset[TaskState]]] = {
    Move.CLAIM: (frozenset({_S.READY}), frozenset({_S.RUNNING})),
    Move.SUCCEED: (frozenset({_S.RUNNING}), frozenset({_S.SUCCEEDED})),
    Move.FAIL: (frozenset({_S.RUNNING}), frozenset({_S.RETRYING, _S.READY, _S.DEAD})),
    Move.SNOOZE: (frozenset({_S.RUNNING}), WAITING),
    Move.LAPSE: (frozenset({_S.RUNNING}), frozenset({_S.READY, _S.DEAD})),
    Move.RELEASE: (frozenset({_S.RUNNING}), frozenset({_S.READY, _S.SCHEDULED, _S.RETRYING, _S.DEAD})),
    Move.EXPIRE: (WAITING | {_S.RUNNING, _S.PAUSED, _S.BLOCKED}, frozenset({_S.EXPIRED})),
    Move.CANCEL: (WAITING | {_S.RUNNING, _S.PAUSED, _S.BLOCKED, _S.DEAD}, frozenset({_S.CANCELLED})),
    Move.PAUSE: (WAITING, frozenset({_S.PAUSED})),
    Move.RESUME: (frozenset({_S.PAUSED}), WAITING),
    Move.RESCHEDULE: (WAITING | {_S.PAUSED}, WAITING | {_S.PAUSED}),
    Move.RUN_NOW: (WAITING | {_S.PAUSED}, frozenset({_S.READY})),
    Move.REDRIVE: (frozenset({_S.DEAD}), frozenset({_S.READY, _S.SCHEDULED})),
    Move.DROP: (frozenset({_S.DEAD}), frozenset({_S.CANCELLED})),
}


def sources_of(move: Move) -> frozenset[TaskState]:
    return TRANSITIONS[move][0]
