"""`duetime breakers`: target hosts that are called less or not at all, whether the tenant is stopped, and why."""

from duetime.cli.actions import Action, AddOptions, Command, Given, RunAction, Subparsers, list_all, tell
from duetime.cli.output import Column, local_time, print_line
from duetime.errors import UsageError
from duetime.model.breaker_status import TENANT_HOST
from duetime.model.origin import read_host
from duetime.sdk.calls.administration import BREAKERS
from duetime.sdk.calls.call import ApiCall
from duetime.sdk.shapes.operation import Breaker


def add_parser(subparsers: Subparsers) -> None:
    Command(
        "breakers",
        "target hosts that are called less or not at all, and whether the tenant is stopped",
        "Breakers of target hosts, and the tenant's own (the host `tenant`): what they let through and "
        "why, and forcing them by hand.",
        (
            Action(
                "list",
                "list those that are not closed, or are forced",
                list_all(
                    lambda _, limit, cursor: BREAKERS.list(limit=limit, cursor=cursor),
                    _COLUMNS,
                    _row,
                    empty="Nothing is stopped, and every host is called as fast as there is work.",
                ),
            ),
            Action("open", "call a host no more, until it is set otherwise", _put("open"), _PUT_OPTIONS),
            Action("close", "limit nothing for a host, whatever fails", _put("closed"), _PUT_OPTIONS),
            Action("auto", "let a host's breaker decide by itself again", _put("auto"), _PUT_OPTIONS),
        ),
    ).add_to(subparsers)


_COLUMNS = (
    Column("HOST"),
    Column("STATE"),
    Column("RATE"),
    Column("FAILED"),
    Column("NEXT PROBE"),
    Column("WHY", shrinks=True),
)
_PUT_OPTIONS: tuple[AddOptions, ...] = (
    lambda parser: parser.add_argument(
        "host",
        metavar="HOST",
        help="host:port as the list shows it, a URL (port 443 if none), or `tenant`: all tasks of the tenant",
    ),
    lambda parser: parser.add_argument("--note", default="", metavar="TEXT", help="why, for those who look at it"),
)


def _row(breaker: Breaker) -> tuple[str, ...]:
    rate = "free" if breaker.allowed_rate is None else f"{breaker.allowed_rate:g}/s"
    failed = f"{breaker.failures} of {breaker.calls}" if breaker.calls else "-"
    why = f"{breaker.reason}: {breaker.note}" if breaker.note else breaker.reason
    return breaker.host, breaker.state, rate, failed, local_time(breaker.next_probe_at), why


def _put(state: str) -> RunAction:
    def call(given: Given) -> ApiCall[Breaker]:
        host = TENANT_HOST if given.host == TENANT_HOST else read_host(given.host)
        if host is None:
            wanted = "write it as api.example.com:443, as a URL, or as the word tenant"
            raise UsageError(f"{given.host} is not a host: {wanted}")
        return BREAKERS.put(host, {"state": state, "note": given.note})

    return tell(call, _say)


def _say(breaker: Breaker) -> None:
    said = f"held {breaker.forced} by hand" if breaker.forced is not None else f"{breaker.state}, deciding by itself"
    whose = "the tenant" if breaker.host == TENANT_HOST else breaker.host
    print_line(f"Breaker of {whose}: {said}.")
