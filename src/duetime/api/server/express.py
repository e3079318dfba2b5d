"""The fast path of a single submission: batched and answered by callbacks, without an asyncio task.

It takes only requests that it is sure of, and decides before anything has happened:
an unusual or wrong request takes the normal path (`app.py`), which answers it.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any

from duetime.admin.keyring import Keys
from duetime.admin.keys import Caller, hash_key
from duetime.admin.schemas import JudgeLaterError
from duetime.api.server.http import JSON, Answer
from duetime.api.server.peers import Client, Peer, Peers
from duetime.api.server.request_id import HEADER, given_id
from duetime.api.tasks.handlers import Tasks
from duetime.api.tasks.operations import SUBMIT
from duetime.database.gather import DATA_ERRORS
from duetime.errors import DuetimeError, InvalidInput, Unavailable
from duetime.lifecycle.submission.batch import Submission, Submitted
from duetime.model.task import DetailedTask, NewTask
from duetime.watchdog import describe_by

PATH = b"/v1/tasks"
METHOD = b"POST"
#: For a longer body the normal path adds little to the time.
MAX_BODY = 64 * 1024

_BEARER = b"Bearer "
_JSON = JSON.encode()
#: Headers that only the normal path understands.
_UNUSUAL = frozenset({b"content-encoding", b"duetime-tenant", b"expect", b"transfer-encoding", b"upgrade"})

#: Called with the finished answer, or with a coroutine that makes one.
Finish = Callable[[Answer | Coroutine[None, None, Answer]], None]


class Head:
    """What the headers of a request say; a client that keeps its connection mostly repeats them."""

    __slots__ = ("_client", "_given", "_peer", "authorization", "headers", "key_hash", "request_id")

    def __init__(
        self,
        given: list[tuple[bytes, bytes]],
        headers: dict[bytes, bytes],
        client: Client = None,
        before: "Head | None" = None,
    ) -> None:
        """`headers` are the given headers as a mapping; `before` is the head of the request before it."""
        self._given = given
        self._client = client
        self._peer: Peer | None = None
        self.headers = headers
        #: The client's own id of the request.
        self.request_id = given_id(self.headers.get(HEADER))
        self.authorization = authorization = headers.get(b"authorization", b"")
        #: None: the fast path does not take the request.
        self.key_hash: bytes | None = None
        if len(self.headers) != len(given) or not _UNUSUAL.isdisjoint(self.headers):
            return
        content_type = self.headers.get(b"content-type", _JSON)
        if content_type != _JSON and content_type.partition(b";")[0].strip().lower() not in (b"", _JSON):
            return
        if before is not None and before.key_hash is not None and before.authorization == authorization:
            # A connection mostly has one key, and hashing it takes a tenth of the time of the request.
            self.key_hash = before.key_hash
        elif authorization.startswith(_BEARER):
            self.key_hash = hash_key(authorization[len(_BEARER) :].decode("latin-1").strip())

    def peer(self, peers: Peers) -> Peer:
        """The client for whom the request came; found once for a client that repeats its headers."""
        if self._peer is None:
            self._peer = peers.of_request(self._client, self._given)
        return self._peer


def _describe(variables: Mapping[str, Any]) -> tuple[str, str | None]:
    return SUBMIT.name, variables["caller"].tenant_name


class Express:
    def __init__(self, tasks: Tasks, keys: Keys, peers: Peers) -> None:
        self._tasks = tasks
        self._submitter = tasks.submitter
        self._reader = tasks.judging.reader
        self._keys = keys
        self._noted = keys.uses.noted
        self._peers = peers

    def tenant_of(self, given: list[tuple[bytes, bytes]]) -> int:
        """The tenant of the key in the headers, if it is known without asking the database; else 0."""
        key_hash = Head(given, dict(given)).key_hash
        caller = None if key_hash is None else self._keys.recall(key_hash)
        return 0 if caller is None else caller.tenant

    def take(self, head: Head, body: bytes, finish: Finish) -> bool:
        """Submit what the request asks for and finish later; False: nothing has happened, take the normal path."""
        if head.key_hash is None:
            return False
        caller = self._keys.recall(head.key_hash)
        if caller is None or caller.role not in SUBMIT.allowed_roles:
            return False
        if caller.allowed_ips and not caller.is_allowed_at(head.peer(self._peers).address):
            return False
        if head.key_hash not in self._noted:
            self._keys.uses.note(caller, head.peer(self._peers).name)
        try:
            asked = self._tasks.read_one(self._reader, head.headers, caller, body, explains=False)
        except (DuetimeError, JudgeLaterError):
            return False
        task = asked.task
        lane = self._submitter.find_lane(task)
        if (
            lane is None
            or (isinstance(task, DetailedTask) and task.flow is not None)
            or not self._tasks.admission.admit_now(task)
        ):
            return False
        done = partial(self._finish, finish, caller, task)
        self._submitter.submit_soon(task, lane, done, asked.request, asked.fingerprint)
        return True

    def _finish(
        self, finish: Finish, caller: Caller, task: NewTask, answers: Sequence[Submission] | BaseException
    ) -> None:
        if not isinstance(answers, BaseException):
            submission = answers[0]
            if isinstance(submission, Submitted) and submission.is_new:
                finish(self._tasks.answer_new(caller, task, submission))
                return
        finish(self._answer_with_care(caller, task, answers))

    async def _answer_with_care(
        self, caller: Caller, task: NewTask, answers: Sequence[Submission] | BaseException
    ) -> Answer:
        if isinstance(answers, DATA_ERRORS):
            raise InvalidInput(f"the database refuses this task: {answers}") from answers
        if isinstance(answers, asyncio.CancelledError):
            raise Unavailable("the task was not stored: the node is stopping; ask again") from answers
        if isinstance(answers, BaseException):
            raise answers
        return await self._tasks.answer_one(caller, task, answers[0])


for _way in (Express.take, Express._finish):
    describe_by(_way.__code__, _describe)
