"""Make the call of one attempt, and report how it ended.

No call begins after its task has expired, nor after the time by which it had to
begin.  Every error ends the attempt; none is raised to the executor.
"""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from datetime import datetime

import structlog

from duetime.admin.signing import Signing
from duetime.clock import DatabaseClock, to_us
from duetime.errors import Unavailable
from duetime.executor.exchange import build_request, report_answer, report_failure, timeout_of
from duetime.executor.held import GiveBack, Held, Phase, backoff_of
from duetime.executor.http import HttpClient
from duetime.executor.messages import NoResponse, Request, Response
from duetime.executor.secret_headers import Opener, hide_echoes
from duetime.executor.target_health import health_of
from duetime.lifecycle.tasks.settle import Report
from duetime.model.egress_rules import EGRESS_REFUSED, EgressJudge
from duetime.model.origin import TargetError
from duetime.model.task import LaneKey, Outcome
from duetime.model.vault import SealError, Vault

_AWAY_SECONDS = 0.5
# Long enough to look up hundreds of names that resolve, and no longer: a waiting task occupies a slot of the node.
_WAIT_FOR_LOOKUP_SECONDS = 1.0

SecretOf = Callable[[int], Awaitable[Signing]]
KeyOf = Callable[[int], LaneKey | None]
#: The rules that the calls of a tenant are checked against, if there are any.
EgressOf = Callable[[int], EgressJudge | None]

log = structlog.get_logger(__name__)


class _EgressRefusedError(Exception):
    """The tenant may not call this address; the message is for the tenant."""


class TargetCaller:
    """Makes calls. `over` is called once for each call that began and was not cancelled, never from within `begin`."""

    def __init__(
        self,
        client: HttpClient,
        clock: DatabaseClock,
        secret_of: SecretOf,
        key_of: KeyOf,
        over: Callable[[Held, Report | GiveBack], None],
        vault: Vault,
        egress_of: EgressOf,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._client = client
        self._clock = clock
        self._secret_of = secret_of
        self._key_of = key_of
        self._over = over
        self._opener = Opener(vault)
        self._egress_of = egress_of
        self._secrets: dict[int, Signing] = {}
        self._beginning: list[Held] = []

    def go_by(self, clock: DatabaseClock) -> None:
        """Begin no more calls; the end of those under way is taken from this clock."""
        self._clock, self._secret_of, self._key_of = clock, _nobody_s_secret, lambda lane: None
        self._egress_of = lambda tenant: None

    def forget_secrets(self) -> None:
        """Forget the signing secrets, so that they are read again."""
        self._secrets.clear()

    def begin(self, held: Held) -> None:
        """Begin its call in the next turn of the loop.

        Calls are begun in batches: waking a server for each single request costs both sides more.
        """
        if not self._beginning:
            self._loop.call_soon(self._begin_all)
        self._beginning.append(held)

    def _begin_all(self) -> None:
        beginning, self._beginning = self._beginning, []
        for held in beginning:
            if held.phase is not Phase.CALLING:
                # It was cancelled before it began.
                continue
            secret = self._secrets.get(held.task.lane)
            if secret is not None:
                self._call(held, secret)
            else:
                held.call = self._loop.create_task(self._get_secret(held))

    async def _get_secret(self, held: Held) -> None:
        try:
            secret = self._secrets[held.task.lane] = await self._secret_of(held.task.lane)
        except Unavailable:
            self._over(held, GiveBack(_AWAY_SECONDS))
        except Exception as error:
            self._over(held, _broken(held, error))
        else:
            self._call(held, secret)

    def _call(self, held: Held, secret: Signing) -> None:
        task, now = held.task, self._clock.now()
        end: Report | GiveBack
        try:
            if task.expires_at is not None and now >= task.expires_at:
                end = Report(task.id, task.number, Outcome.EXPIRED, completed_us=to_us(now))
            elif self._loop.time() > held.begin_by:
                end = GiveBack(0.0)
            else:
                key = self._key_of(task.lane)
                tenant, queue = (None, None) if key is None else (key.tenant, key.queue)
                opened = held.opened = self._opener.open(task, tenant)
                request = build_request(
                    task,
                    secret.secret,
                    int(now.timestamp()),
                    queue,
                    opened,
                    former=secret.former_at(now),
                    tenant=tenant or 0,
                )
                judge = self._egress_of(request.tenant)
                refusal = judge.refusal(request.origin) if judge is not None else None
                if refusal is not None:
                    raise _EgressRefusedError(refusal)
                answered = functools.partial(self._answered, held, now)
                held.call = self._client.begin(request, timeout_of(task), answered)
                if held.call is None:
                    held.call = self._loop.create_task(self._await_lookup(held, secret, request))
                else:
                    held.is_started, held.started_at = True, now
                return
        except _EgressRefusedError as error:
            # The rule is newer than the task; whoever removes the rule can redrive the task.
            end = report_failure(task.id, task.number, str(error), reason=EGRESS_REFUSED, is_permanent=True)
        except SealError as error:
            # Another attempt may run on a node that has the key.
            end = report_failure(task.id, task.number, str(error), reason="secrets")
        except TargetError as error:
            end = report_failure(task.id, task.number, str(error), reason="target", is_permanent=True)
        except Exception as error:
            end = _broken(held, error)
        self._over(held, end)

    async def _await_lookup(self, held: Held, secret: Signing, request: Request) -> None:
        """Wait for a look-up, because the tenant has reached its limit of look-ups; then make the call."""
        until = min(held.begin_by, self._loop.time() + _WAIT_FOR_LOOKUP_SECONDS)
        try:
            async with asyncio.timeout_at(until):
                await self._client.guard.turn(request.tenant, request.origin.host)
        except TimeoutError:
            self._over(held, GiveBack(backoff_of(held.task)))
        except Exception as error:
            self._over(held, _broken(held, error))
        else:
            self._call(held, secret)

    def _answered(self, held: Held, started_at: datetime, answer: Response | NoResponse) -> None:
        now = self._clock.now()
        try:
            held.health = health_of(answer, now)
            if held.opened is not None and isinstance(answer, Response):
                answer = hide_echoes(answer, held.opened)
            end = report_answer(held.task, answer, started_at, now)
        except Exception as error:
            end = _broken(held, error)
        self._over(held, end)


async def _nobody_s_secret(lane: int) -> Signing:
    raise Unavailable("no call begins here any more")


def _broken(held: Held, error: Exception) -> Report:
    log.error("a call broke", task=str(held.task.id), exc_info=error)
    return report_failure(
        held.task.id,
        held.task.number,
        "the executor could not make the call",
        reason="internal",
        started_at=held.started_at,
    )
