"""The short way of a single submission: gathered and answered by callbacks, without a task of its own.

It takes only what it is sure of, and before anything has happened: a request
that is unusual or wrong goes the long way (`app.py`), which has its answer.
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
#: A longer body takes long enough by itself.
MAX_BODY = 64 * 1024

_BEARER = b"Bearer "
_JSON = JSON.encode()
#: Headers whose meaning is the long way's business.
_UNUSUAL = frozenset({b"content-encoding", b"duetime-tenant", b"expect", b"transfer-encoding", b"upgrade"})

#: Gives the finished answer, or what will make one.
Finish = Callable[[Answer | Coroutine[None, None, Answer]], None]


class Head:
    """What the headers of a request say; a client that keeps its connection mostly says the same again."""

    __slots__ = ("_client", "_given", "_peer", "headers", "key_hash", "request_id")

    def __init__(self, given: list[tuple[bytes, bytes]], headers: dict[bytes, bytes], client: Client = None) -> None:
        """`headers` are the given ones as a mapping."""
        self._given = given
        self._client = client
        self._peer: Peer | None = None
        self.headers = headers
        #: What the client calls its request.
        self.request_id = given_id(self.headers.get(HEADER))
        #: None: nothing for the short way.
        self.key_hash: bytes | None = None
        if len(self.headers) != len(given) or not _UNUSUAL.isdisjoint(self.headers):
            return
        content_type = self.headers.get(b"content-type", _JSON)
        if content_type != _JSON and content_type.partition(b";")[0].strip().lower() not in (b"", _JSON):
            return
        authorization = self.headers.get(b"authorization", b"")
        if authorization.startswith(_BEARER):
            self.key_hash = hash_key(authorization[len(_BEARER) :].decode("latin-1").strip())

    def peer(self, peers: Peers) -> Peer:
        """For whom the request came; a client that says the same again is looked for once."""
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
        """Whose key the headers of a request have, as far as is known without asking; 0: nobody's."""
        key_hash = Head(given, dict(given)).key_hash
        caller = None if key_hash is None else self._keys.recall(key_hash)
        return 0 if caller is None else caller.tenant

    def take(self, head: Head, body: bytes, finish: Finish) -> bool:
        """Submit what the request asks for and finish later; False: nothing has happened, go the long way."""
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
