"""The database server as nodes see it: connections, statements that stall, answers that get lost.

The statements themselves are carried out by the store (`node_statements`), under
their names in the SQL files; the node's own pool, time limits and changes in several
messages are the real ones.  A connection is a session at the server, which does
one thing after the other and finds out that its client has gone when it looks for
the next message.
"""

import asyncio
import re
import uuid
from collections import deque
from collections.abc import Callable
from contextvars import Context, ContextVar
from importlib.resources import files
from pathlib import Path
from typing import Any, Protocol

import asyncpg

from duetime.database.statements import Statement, load
from simulation.loop import Process, VirtualLoop
from simulation.node_statements import Store
from simulation.rows import Record
from simulation.tables import Blocked, Broken, Transaction

#: They change nothing and take no number.
_READS = frozenset(
    {"read_hints", "ask", "read_shards", "read_bounds", "read_keys", "read_requests", "find", "read_held"}
)
_READS |= {"read_held", "read_claims", "read_ends", "read_beats", "read_left_behind", "read_signed_off", "read_started"}
_READS |= {
    "read_states",
    "read_all",
    "read_one",
    "read_of_tenant",
    "wait_for_standbys",
    "count",
    "forget",
    "read_running",
    "read_ended",
}
_READS |= {"read_due", "read_runs", "read_running_backfills"}
#: Statements about holders lock a row that every beat needs: they do not last.
_SHORT = frozenset({"peek", "note", "keep_hints", "register", "beat", "end_silent", "sign_off", "join", "leave"})
#: The verbs of people.
_VERBS = frozenset({"cancel", "pause", "resume", "reschedule", "redrive"})
_LOCK_SECONDS = 0.02
_IDLE_SECONDS = 5.0
#: Which call of a client a statement is for.
CALL: ContextVar[int | None] = ContextVar("call", default=None)


class Weather(Protocol):
    """What befalls messages and statements."""

    is_calm: bool

    def latency(self) -> float: ...
    def is_unlucky(self, share: float) -> bool: ...
    def random(self) -> float: ...
    def note(self, text: str, *arguments: object) -> None: ...
    def count(self, event: str) -> None: ...
    def queueing(self, name: str) -> float: ...
    def delay(self, name: str, rows: list[Record]) -> float: ...
    def done(self, process: Process, name: str, rows: list[Record], transaction: Transaction) -> None: ...
    def carried_out(self, call: int, verb: str) -> None: ...


class Server:
    def __init__(self, loop: VirtualLoop, store: Store, weather: Weather) -> None:
        self.loop = loop
        self.store = store
        self.weather = weather
        self.is_away = False
        self.sessions: dict[Session, None] = {}

    def after(self, seconds: float, act: Callable[..., object], *arguments: object) -> None:
        # Not in the context of whoever sent the message: it goes on its way without him.
        self.loop.call_later(seconds, act, *arguments, context=Context())

    async def connect(self, timeout: float) -> "Connection":
        process = Process.current()
        assert process is not None
        if self.is_away or process.is_dead:
            await asyncio.sleep(min(0.2, timeout))
            raise ConnectionRefusedError("the database does not answer")
        await asyncio.sleep(self.weather.latency())
        if self.is_away:
            raise ConnectionResetError("the connection broke")
        return Connection(self, process)

    def go_away(self, *, restarts: bool) -> None:
        """All connections break; what is open is undone if the server restarts."""
        self.is_away = True
        sessions, self.sessions = list(self.sessions), {}
        if restarts:
            transactions = list(self.store.open.values())
            for transaction in transactions:
                transaction.waiters.clear()
            for transaction in transactions:
                self.store.rollback(transaction)
        for session in sessions:
            session.is_over = restarts
            session.hang_up()
            self.after(0.1, session.connection.break_off)


class Connection:
    """What the driver gives to a node's pool."""

    def __init__(self, server: Server, process: Process) -> None:
        self._server = server
        self._process = process
        self._session = Session(server, self)
        self._is_closed = False
        self._answer: asyncio.Future[list[Record]] | None = None
        self._sent_at = 0.0

    async def fetch(self, sql: str, *arguments: Any, timeout: float | None = None) -> list[Record]:
        if self._is_closed:
            raise asyncpg.InterfaceError("the connection is closed")
        if self._process.is_dead:
            self.terminate()
            raise ConnectionResetError("the process is dead")
        loop = self._server.loop
        answer: asyncio.Future[list[Record]] = loop.create_future()
        self._answer = answer
        # One behind the other, as on any line.
        self._sent_at = max(self._sent_at, loop.now + self._server.weather.latency())
        self._server.after(self._sent_at - loop.now, self._session.receive, _Message(sql, arguments, answer))
        expiry = None if timeout is None else loop.call_later(timeout, _expire, answer)
        try:
            return await answer
        finally:
            if expiry is not None:
                expiry.cancel()

    async def fetchrow(self, sql: str, *arguments: Any, timeout: float | None = None) -> Record | None:
        rows = await self.fetch(sql, *arguments, timeout=timeout)
        return rows[0] if rows else None

    async def fetchval(self, sql: str, *arguments: Any, timeout: float | None = None) -> Any:
        row = await self.fetchrow(sql, *arguments, timeout=timeout)
        return None if row is None else row[0]

    async def execute(self, sql: str, *arguments: Any, timeout: float | None = None) -> str:
        await self.fetch(sql, *arguments, timeout=timeout)
        return ""

    def transaction(self) -> "_Block":
        return _Block(self)

    def is_closed(self) -> bool:
        return self._is_closed

    def terminate(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            loop = self._server.loop
            self._sent_at = max(self._sent_at, loop.now + self._server.weather.latency())
            self._server.after(self._sent_at - loop.now, self._session.hang_up)
            if self._answer is not None and not self._answer.done():
                _fail(self._answer, asyncpg.ConnectionDoesNotExistError("the connection was closed"))

    async def close(self, timeout: float | None = None) -> None:
        self.terminate()

    def break_off(self) -> None:
        """The line broke; whoever waits for an answer hears so."""
        self._is_closed = True
        if self._answer is not None:
            _fail(self._answer, asyncpg.ConnectionDoesNotExistError("the connection broke"))


class _Block:
    """A transaction of the driver's."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def start(self) -> None:
        await self._connection.execute("start")

    async def rollback(self) -> None:
        await self._connection.execute("rollback")

    async def __aenter__(self) -> None:
        await self.start()

    async def __aexit__(self, *error: object) -> None:
        if not self._connection.is_closed():
            await self._connection.execute("commit" if error[0] is None else "rollback")


class _Message:
    __slots__ = ("answer", "arguments", "call", "sql")

    def __init__(self, sql: str, arguments: tuple[Any, ...], answer: "asyncio.Future[list[Record]]") -> None:
        self.sql, self.arguments, self.answer = sql, arguments, answer
        self.call = CALL.get()


class Session:
    """The server's side of a connection."""

    def __init__(self, server: Server, connection: Connection) -> None:
        self._server = server
        self._store = server.store
        self._weather = server.weather
        self.connection = connection
        #: The server's process has died.
        self.is_over = False
        self._is_gone = False
        self._is_busy = False
        self._waiting: deque[_Message] = deque()
        #: One that lasts for several messages.
        self._block: Transaction | None = None
        self._turns = 0
        server.sessions[self] = None

    def receive(self, message: _Message) -> None:
        if self.is_over or self._is_gone:
            return
        self._waiting.append(message)
        self._next()

    def hang_up(self) -> None:
        """The client has gone; a statement under way goes on to its end."""
        self._is_gone = True
        self._server.sessions.pop(self, None)
        if not self._is_busy:
            self._end_block()

    def _next(self) -> None:
        if self._is_busy or not self._waiting or self.is_over:
            return
        self._is_busy = True
        self._turns += 1
        message = self._waiting.popleft()
        name = _name_of(message.sql)
        weather = self._weather
        share = 0.0 if name in _READS or weather.is_calm else 0.004
        if share and (self._block is not None or name.startswith("submit")):
            # What may be done once only is at stake.
            share = 0.012
        if share and weather.is_unlucky(share):
            # The server's process stands still before it has looked at anything, or the statement is on its way.
            seconds = 5.0 + 60.0 * weather.random()
            weather.note("%s stalls for %.1f s", name, seconds)
            if self._block is not None and not self._store.faults.verbs_commit_themselves:
                # It is on its way, and its transaction does not wait for it any longer.
                self._server.after(_IDLE_SECONDS, self._end_stalled, self._turns)
            self._server.after(seconds, self._begin, message, name, True)
        elif queueing := weather.queueing(name):
            self._server.after(queueing, self._begin, message, name)
        else:
            self._begin(message, name)

    def _begin(self, message: _Message, name: str, is_late: bool = False) -> None:
        if self.is_over:
            return
        if is_late:
            self._weather.count("late copies")
        commits_itself = self._store.faults.verbs_commit_themselves
        match name:
            case "start":
                self._block = self._store.open_transaction()
                self._finish(message, [])
            case "begin":
                self._block = self._store.open_transaction()
                operation = uuid.UUID(_UUID.findall(message.sql)[0])
                self._try(message, "begin_change", {"operation": operation}, self._block)
            case "commit" if commits_itself or self._block is None:
                self._finish(message, [])
            case "commit":
                self._later(message, name, [], self._block)
            case "rollback":
                self._end_block()
                self._finish(message, [])
            case _:
                transaction = self._block
                if transaction is None:
                    transaction = self._store.open_transaction() if name not in _READS else self._read_only()
                    transaction.is_late = is_late
                self._try(message, name, _arguments_of(message), transaction)

    def _read_only(self) -> Transaction:
        return Transaction(0, self._store.now_us())

    def _try(self, message: _Message, name: str, arguments: dict[str, Any], transaction: Transaction) -> None:
        store = self._store
        if self.is_over or (transaction.xid and transaction.xid not in store.open):
            return
        transaction.begin_statement()
        try:
            rows = _handler(store, message.sql, name)(transaction, **arguments)
        except Blocked as blocked:
            store.let_go(transaction)
            self._wait(message, name, arguments, transaction, blocked.by)
            return
        except asyncpg.PostgresError as error:
            self._refuse(message, transaction, error)
            return
        if message.call is not None and rows and name in _VERBS:
            call = message.call
            transaction.effects.append(lambda: self._weather.carried_out(call, name))
        if transaction is self._block and not (store.faults.verbs_commit_themselves and name != "probe"):
            self._finish(message, rows)
        elif not transaction.xid:
            self._weather.done(self.connection._process, name, rows, transaction)
            self._finish(message, rows)
        else:
            self._later(message, name, rows, transaction)

    def _wait(
        self, message: _Message, name: str, arguments: dict[str, Any], transaction: Transaction, by: Transaction
    ) -> None:
        """For a row that somebody else has: what is repeated looks again from its beginning."""
        is_over = False

        def again() -> None:
            nonlocal is_over
            if not is_over:
                is_over = True
                self._try(message, name, arguments, transaction)

        def give_up() -> None:
            nonlocal is_over
            if not is_over and not self.is_over:
                is_over = True
                self._refuse(message, transaction, asyncpg.LockNotAvailableError("the lock was not to be had"))

        by.waiters.append(again)
        if name == "claim_due":
            self._server.after(_LOCK_SECONDS, give_up)

    def _refuse(self, message: _Message, transaction: Transaction, error: Exception) -> None:
        self._store.let_go(transaction)
        if transaction is not self._block:
            self._store.rollback(transaction)
        self._server.after(self._weather.latency(), _fail, message.answer, error)
        self._go_on()

    def _later(self, message: _Message, name: str, rows: list[Record], transaction: Transaction) -> None:
        delay = self._weather.delay(name, rows)
        if delay:
            self._weather.note("%s commits %.1f s late: %s", name, delay, rows)
            self._server.after(delay, self._commit, message, name, rows, transaction)
            if self._store.faults.mints_anew_in_doubt and name.startswith("submit"):
                self._server.after(delay / 2, _give, message.answer, [])
        else:
            self._commit(message, name, rows, transaction)

    def _commit(self, message: _Message, name: str, rows: list[Record], transaction: Transaction) -> None:
        if self.is_over or transaction.xid not in self._store.open:
            return
        if transaction is self._block:
            self._block = None
        process = self.connection._process
        self._weather.note("%s %s -> %s", process, name, rows)
        self._store.commit(transaction)
        self._weather.done(process, name, rows, transaction)
        if self._weather.is_unlucky(0.004):
            self._weather.count("lost answers")
            self._is_gone = True
            self._server.sessions.pop(self, None)
            self._server.after(self._weather.latency(), self.connection.break_off)
            self._go_on()
        else:
            self._finish(message, rows)

    def _finish(self, message: _Message, rows: list[Record]) -> None:
        self._server.after(self._weather.latency(), _give, message.answer, rows)
        self._go_on()

    def _go_on(self) -> None:
        self._is_busy = False
        if self._waiting:
            self._next()
        elif self._is_gone:
            self._end_block()
        elif self._block is not None:
            self._server.after(_IDLE_SECONDS, self._end_idle, self._turns)

    def _end_idle(self, turns: int) -> None:
        """Whoever stands still in a transaction does not keep its locks."""
        if self._turns == turns and self._block is not None and not self._is_busy:
            self._is_gone = True
            self._end_block()
            self._server.sessions.pop(self, None)
            self.connection.break_off()

    def _end_stalled(self, turns: int) -> None:
        if self._turns == turns and not self.is_over:
            self.is_over = True
            self.hang_up()
            self._end_block()
            self.connection.break_off()

    def _end_block(self) -> None:
        if self._block is not None:
            block, self._block = self._block, None
            if block.xid in self._store.open:
                self._store.rollback(block)


def _give(answer: "asyncio.Future[list[Record]]", rows: list[Record]) -> None:
    if not answer.done():
        answer.set_result(rows)


def _fail(answer: "asyncio.Future[list[Record]]", error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)
        # Whoever waited may have gone.
        answer.exception()


def _expire(answer: "asyncio.Future[list[Record]]") -> None:
    _fail(answer, TimeoutError())


# Names of statements

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}")


def _load_all() -> dict[str, tuple[str, Statement]]:
    """Every statement of the SQL files by its text, with the name of its file."""
    root = files("duetime")
    found = {}
    for path in sorted(Path(str(root)).rglob("*.sql")):
        package = ".".join(["duetime", *path.relative_to(str(root)).parts[:-1]])
        if path.name in ("schema.sql", "fragments.sql") or "migrations" in path.parts:
            continue
        for statement in load(package, path.name).values():
            found[statement.sql] = (path.stem, statement)
    return found


_STATEMENTS = _load_all()
_BEGINS_WITH = next(
    sql[: sql.index(":'id'")] for sql, (file, each) in _STATEMENTS.items() if (file, each.name) == ("changing", "begin")
)


def _name_of(sql: str) -> str:
    if (known := _STATEMENTS.get(sql)) is not None:
        return known[1].name
    if sql.startswith(_BEGINS_WITH):
        return "begin"
    if sql in ("start", "commit", "rollback"):
        return sql
    raise Broken(f"the double of the database does not know this statement: {sql}")


def _arguments_of(message: _Message) -> dict[str, Any]:
    return dict(zip(_STATEMENTS[message.sql][1].parameters, message.arguments, strict=True))


def _handler(store: Store, sql: str, name: str) -> Callable[..., list[Record]]:
    file = _STATEMENTS[sql][0] if sql in _STATEMENTS else ""
    handler = getattr(store, f"{file}_{name}", None) or getattr(store, name, None)
    if handler is None:
        raise Broken(f"the double of the database does not know {file}.{name}")
    found: Callable[..., list[Record]] = handler
    return found
