"""Every error a user can meet, with a stable code and a message that says what to do.

DuetimeError
├── InvalidInput           422  the request is understood and wrong; names the fields
│   └── TooComplex              evaluating the schedule takes more steps than it may
├── MalformedRequest       400  not HTTP
├── MalformedBody          400  not JSON, or cut off
├── TooLarge               413
├── HeadTooLarge           431
├── TooSlow                408  the request did not arrive in time
├── Unauthorized           401
├── Forbidden              403
│   └── KeyNotAllowedHere       the key is only for other addresses
├── NotFound               404
├── MethodNotAllowed       405
├── UnsupportedMediaType   415
├── Conflict               409  the present state forbids it
│   ├── IdempotencyConflict     the key was used for another request
│   ├── NoSecretsKey            a secret cannot be encrypted here
│   ├── WorkerNameTaken         the worker of another key has this name
│   └── WrongState              the verb does not fit the task's state
├── TooManyRequests        429  not now; later it may be accepted
│   ├── QuotaExceeded           the tenant submits faster than its quota
│   ├── TooManyWaiting          the tenant has reached its quota of waiting tasks
│   ├── RateLimited             the type takes no more submissions of this key now
│   ├── TooManyWrongKeys        the peer sent too many unknown API keys
│   └── Overloaded              the node or the database is behind
├── Unavailable            503  try again; nothing was done
│   ├── Unknown                 the database cannot say whether it was done
│   ├── FailingOver             the node forgets what it knew of a server that was replaced
│   └── TooManyConnections      of the peer or of the node, and none of them is idle
├── SearchIncomplete       503  no match in the time that a request has; tells where to go on
└── UsageError             the command line, the configuration or the machine; exit code 2
"""

from collections.abc import Sequence
from typing import ClassVar, Self

import msgspec

#: How many field errors the detail names, for people; programs get all of them.
_IN_A_SENTENCE = 5


class FieldError(msgspec.Struct, frozen=True):
    """Where in the request something is wrong, and what would be right."""

    path: str
    message: str


class DuetimeError(Exception):
    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500
    title: ClassVar[str] = "Internal error"

    def __init__(self, detail: str, errors: tuple[FieldError, ...] = (), retry_after: float | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.errors = errors
        self.retry_after = retry_after

    def as_value(self) -> Self:
        """The error for keeping in a list: without its traceback, whose frames hold the data that was being read."""
        self.__traceback__ = self.__cause__ = self.__context__ = None
        return self


class InvalidInput(DuetimeError):
    code, status, title = "invalid", 422, "The request is not valid"

    @classmethod
    def at(cls, path: str, message: str) -> "InvalidInput":
        return cls(f"{path}: {message}", (FieldError(path, message),))

    @classmethod
    def all(cls, errors: Sequence[FieldError], most: int = 50) -> "InvalidInput":
        """Name every wrong field, up to `most`; the client finds the rest when these are corrected."""
        named = [f"{error.path}: {error.message}" if error.path else error.message for error in errors[:_IN_A_SENTENCE]]
        more = len(errors) - len(named)
        if more:
            named.append(f"and {more} more" if len(errors) < most else f"and at least {most - len(named)} more")
        return cls("; ".join(named), tuple(errors[:most]))


class TooComplex(InvalidInput):
    code, title = "schedule_too_complex", "The schedule takes too much work to evaluate"


class EgressRefused(InvalidInput):
    """The tenant may not call this target; the first error names the rule."""

    code, title = "egress_refused", "The tenant may not call this target"


class MalformedRequest(DuetimeError):
    code, status, title = "malformed_request", 400, "The request cannot be read"


class MalformedBody(DuetimeError):
    code, status, title = "malformed", 400, "The body cannot be read"


class TooLarge(DuetimeError):
    code, status, title = "too_large", 413, "Too large"


class HeadTooLarge(DuetimeError):
    code, status, title = "head_too_large", 431, "The head of the request is too large"


class TooSlow(DuetimeError):
    code, status, title = "too_slow", 408, "The request took too long to arrive"


class Unauthorized(DuetimeError):
    code, status, title = "unauthorized", 401, "No valid API key"


class Forbidden(DuetimeError):
    code, status, title = "forbidden", 403, "The API key does not allow this"


class KeyNotAllowedHere(Forbidden):
    code, title = "key_not_allowed_here", "The API key is not allowed from this address"


class NotFound(DuetimeError):
    code, status, title = "not_found", 404, "Not found"


class MethodNotAllowed(DuetimeError):
    code, status, title = "method_not_allowed", 405, "Method not allowed"


class UnsupportedMediaType(DuetimeError):
    code, status, title = "unsupported_media_type", 415, "Unsupported media type"


class Conflict(DuetimeError):
    code, status, title = "conflict", 409, "Conflict"


class IdempotencyConflict(Conflict):
    code, title = "idempotency_conflict", "The idempotency key was used for another request"


class NoSecretsKey(Conflict):
    """A secret would be stored in plain text, so it is not stored."""

    code, title = "no_secrets_key", "The server has no key to encrypt secrets with"

    def __init__(self, header: str) -> None:
        super().__init__(
            f"target.headers.{header[:80]} is a secret, and this server has no key to encrypt it with: "
            "whoever runs it sets secrets_key_file or DUETIME_SECRETS_KEYS (docs/configuration.md)"
        )


class WorkerNameTaken(Conflict):
    """A worker's name belongs to the first key that used it, until the worker is silent or signs off."""

    code, title = "worker_name_taken", "The worker's name belongs to another key"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"another API key's worker is called {name[:80]}, so nothing was done: choose another name (with random "
            "characters at every start), or wait until that worker has signed off or counts as dead"
        )


class WrongState(Conflict):
    """The verb does not fit the state that the task was in."""

    code, title = "wrong_state", "The task's state does not allow this"

    def __init__(self, verb: str, state: str, detail: str | None = None) -> None:
        super().__init__(detail or f"a task that is {state} cannot be {verb}")
        self.verb, self.state = verb, state


class TooManyRequests(DuetimeError):
    """Nothing was done; `retry_after` says when to ask again."""

    code, status, title = "too_many_requests", 429, "Too many requests"

    def __init__(self, detail: str, retry_after: float = 1.0) -> None:
        super().__init__(detail, retry_after=retry_after)

    @property
    def reason(self) -> str:
        """The detail without its advice to the reader."""
        return self.detail.partition(";")[0]


class QuotaExceeded(TooManyRequests):
    code, title = "quota_exceeded", "The tenant's quota is used up"


class TooManyWaiting(TooManyRequests):
    code, title = "too_many_waiting", "Too many tasks of the tenant wait"


class Overloaded(TooManyRequests):
    code, title = "overloaded", "The service is behind"


class RateLimited(TooManyRequests):
    code, title = "rate_limited", "The type takes no more submissions now"


class TooManyWrongKeys(TooManyRequests):
    """The key was not looked up, so it may be valid or not."""

    code, title = "too_many_wrong_keys", "Too many wrong API keys"

    def __init__(self, retry_after: float) -> None:
        super().__init__(
            "too many API keys that are not valid came from this address, so this one was not looked up; try again",
            retry_after,
        )


class Unavailable(DuetimeError):
    code, status, title = "unavailable", 503, "Not available right now"

    def __init__(self, detail: str, retry_after: float | None = 1.0) -> None:
        super().__init__(detail, retry_after=retry_after)


class Unknown(Unavailable):
    """The connection broke and the database cannot say whether the work was done."""

    code, title = "unknown", "It is not known whether this was done"


class FailingOver(Unavailable):
    """Nothing was done: another server has replaced the database's, and the node starts again."""

    code, title = "failing_over", "The database has failed over"


class TooManyConnections(Unavailable):
    """The connection is closed before it has sent a request."""

    code, title = "too_many_connections", "Too many connections"


class SearchIncomplete(DuetimeError):
    """No match was found in the time that a request has; `next` is the cursor to go on from."""

    code, status, title = "search_incomplete", 503, "The search is not complete"

    def __init__(self, rows: int, next: str) -> None:
        super().__init__(
            f"nothing was found among up to {rows:,} rows, and there are more: go on with `next` as the cursor,"
            " or say more (queue, state, from, to)"
        )
        self.next = next


class UsageError(DuetimeError):
    """A wrong command, setting or machine: one sentence, exit code 2."""

    code, status, title = "usage", 500, "Wrong usage"
