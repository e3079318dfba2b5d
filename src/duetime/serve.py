"""The composition root: from settings to a running node, and back.

Only this module opens the database; `parts.py` wires what works with it.  A node
starts from the bottom up and stops from the top down: it takes no more work,
lets calls under way end within the deadline, releases the rest at once, and only
then closes its connections, so that no task has to wait for a lapse.

When the database has failed over, a node starts again in its process: the rows that
it remembers may be gone, and their ids may be given to others.  Its port, its clients'
connections and its calls under way stay; everything else is made anew.
"""

import asyncio
import gc
import socket
import time

import structlog

from duetime.api.server.connections import Connections
from duetime.api.server.front import Front
from duetime.api.server.peers import Peers
from duetime.api.server.unsent import Unsent
from duetime.config import Config, read_name_server
from duetime.database.lineage import failing_over
from duetime.database.migrate import bring_up_to_date
from duetime.database.pool import Database
from duetime.errors import Unavailable
from duetime.executor.dns_settings import SystemSettings
from duetime.executor.egress import Guard, read_networks
from duetime.executor.executor import Executor
from duetime.executor.http import HttpClient
from duetime.executor.resolver import Resolver
from duetime.listening import Acceptor, Adopter, listen, make_server, url_of
from duetime.model.vault import Vault
from duetime.parts import Outside, Parts, Sharing
from duetime.secret_keys import read_secrets_keys
from duetime.service import Background, calm_collector
from duetime.watchdog import Watchdog

__all__ = ["Node", "Sharing"]

log = structlog.get_logger()
_TRY_AGAIN_SECONDS = 0.1
_LONGEST_TRY_SECONDS = 1.0
#: Parts without a database end at once; those that take longer than this are left behind.
_DROP_SECONDS = 20.0


class Node:
    """One server process in all its roles: API, scheduler, executor.

    It accepts connections at its listener, or gets them through `adopt` when several
    processes share a port.
    """

    def __init__(
        self, config: Config, database: Database, listener: socket.socket | None, sharing: Sharing | None = None
    ) -> None:
        self.config = config
        self._listener = listener
        peers = Peers(config.trusted_proxies)
        self.connections = Connections.of(config, peers)
        resolver = Resolver(SystemSettings([read_name_server(each) for each in config.dns_servers]))
        guard = Guard(read_networks(config.egress_allow), resolve=resolver.resolve)
        self._client = HttpClient(guard, ca_file=config.egress_ca_file)
        self._outside = Outside(
            config,
            config.node_name or socket.gethostname(),
            Vault(read_secrets_keys(config)),
            peers,
            self.connections,
            Unsent(self.connections),
            self._client,
            sharing,
        )
        #: Executors of earlier parts whose calls are still under way, and the tasks that run them.
        self._retired: dict[Executor, asyncio.Task[None]] = {}
        self._retiring: set[asyncio.Task[None]] = set()
        self.parts = self._make_parts(database)
        self._front = Front(self.parts.app)
        self._server = make_server(self._front)
        self._adopter = Adopter(self._server)
        #: Serves a connection that another process has accepted.
        self.adopt = self._adopter.adopt
        self._acceptor = (
            None if listener is None else Acceptor(listener, self.adopt, self.connections.note_accept_error)
        )
        self._watchdog = Watchdog()
        self._serving: asyncio.Task[None] | None = None
        self._renewing = Background("renewal", self._renew_for_ever)
        self._dropping: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, config: Config, database_url: str) -> "Node":
        """Bind the port, migrate, and connect; common problems of a machine raise clear errors."""
        listener = listen(config.host, config.port)
        try:
            await bring_up_to_date(database_url)
            database = await Database.open(database_url, size=config.database_connections)
        except BaseException:
            listener.close()
            raise
        return cls(config, database, listener)

    @property
    def url(self) -> str:
        """The address of its listener; empty if another process accepts its connections."""
        return "" if self._listener is None else url_of(self._listener)

    async def start(self) -> None:
        self._watchdog.start()
        await self.parts.start()
        self._serving = asyncio.create_task(self._server.serve(sockets=[]), name="api")
        while not self._server.started:
            if self._serving.done():
                self._serving.result()
            await asyncio.sleep(0.005)
        if self._acceptor is not None:
            self._acceptor.start()
        calm_collector()
        self._renewing.start()
        log.info("node started", url=self.url)

    async def stop(self) -> None:
        """Stop taking work, let calls end until a deadline, release the rest, close."""
        self._renewing.cancel()
        await self._renewing.ended()
        if self._dropping is not None:
            await asyncio.wait([self._dropping])
        deadline = self.config.shutdown_seconds
        calling = [executor.stop(deadline) for executor in self._retired]
        if not self.parts.is_dropped:
            await self.parts.stop_taking()
            calling.append(self.parts.stop_calling())
        await asyncio.gather(*calling)
        if self._acceptor is not None:
            self._acceptor.stop()
        self._adopter.refuse()
        self._server.should_exit = True
        if self._serving is not None:
            await asyncio.wait([self._serving], timeout=10.0)
        if self._retiring:
            await asyncio.wait(self._retiring, timeout=5.0)
        if not self.parts.is_dropped:
            await self.parts.close()
        self._watchdog.stop()
        await self._client.close()
        if self._listener is not None:
            self._listener.close()
        log.info("node stopped")

    def _make_parts(self, database: Database) -> Parts:
        return Parts(self._outside, database, lambda: sum(executor.calls for executor in self._retired))

    # Starting again

    async def _renew_for_ever(self) -> None:
        while True:
            await self.parts.database.is_over.wait()
            began_at = time.monotonic()
            try:
                await self._renew()
            except Exception:
                # Whatever the error is, try again: a node that stays as it is would refuse everything.
                log.exception("the node could not start anew and tries again")
                await asyncio.sleep(_LONGEST_TRY_SECONDS)
            else:
                log.warning("the node has started anew", seconds=round(time.monotonic() - began_at, 3))

    async def _renew(self) -> None:
        """Drop all parts and make new ones, on the server that continues."""
        former = self.parts
        self._front.refuse(failing_over)
        retired = former.retire_executor()
        if retired is not None:
            self._retired |= dict([retired])
        for executor in self._retired:
            executor.retire()
        self._dropping = asyncio.create_task(_drop(former), name="dropped parts")
        # A stop waits until the parts have ended.
        await asyncio.shield(self._dropping)
        self._dropping = None
        self.parts = await self._start_parts(former.database)
        del former
        for executor in self._retired:
            executor.report_to(self.parts.feeder, self.parts.holders, self.parts.settler, self.parts.database.clock)
        if retired is not None:
            self._await_end(*retired)
        self._front.use(self.parts.app)
        # The dropped parts were frozen, so the collector does not look at them any more.
        gc.unfreeze()
        calm_collector()

    async def _start_parts(self, former: Database) -> Parts:
        """Start new parts as soon as a server continues the history."""
        delay = _TRY_AGAIN_SECONDS
        while True:
            database, parts = None, None
            try:
                database = await former.follow()
                await bring_up_to_date(database.url)
                parts = self._make_parts(database)
                await parts.start()
                return parts
            except Exception as error:
                log.warning(
                    "the node cannot start anew yet", error=str(error), exc_info=not isinstance(error, Unavailable)
                )
            except BaseException:
                await _discard(database, parts)
                raise
            await _discard(database, parts)
            if database is not None:
                former = database
            await asyncio.sleep(delay)
            delay = min(2 * delay, _LONGEST_TRY_SECONDS)

    def _await_end(self, executor: Executor, running: asyncio.Task[None]) -> None:
        retiring = asyncio.create_task(self._end(executor, running), name="retired executor")
        self._retiring.add(retiring)
        retiring.add_done_callback(self._retiring.discard)

    async def _end(self, executor: Executor, running: asyncio.Task[None]) -> None:
        """Let the calls of a retired executor end and be reported, then forget the executor."""
        stopping = asyncio.create_task(executor.stop(None))
        try:
            await running
        except Exception:
            # What the executor held lapses.
            log.exception("the calls of an executor that was retired broke")
        finally:
            stopping.cancel()
            self._retired.pop(executor, None)


async def _discard(database: Database | None, parts: Parts | None) -> None:
    """Close a database and parts that could not be started."""
    if parts is not None:
        parts.retire_executor()
        await _drop(parts)
    elif database is not None:
        await database.close()


async def _drop(parts: Parts) -> None:
    """End all background work of these parts; they do not reach the database any more."""
    parts.drop()
    try:
        async with asyncio.timeout(_DROP_SECONDS):
            await parts.stop_taking()
            await parts.close()
    except Exception:
        log.exception("not all parts of the node have ended")
