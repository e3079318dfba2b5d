"""Which server to speak to, with which key, and what to say when it refuses.

The address and the key come from the options, else from where the SDK looks for
them (`duetime.sdk.server`).
"""

import argparse
from collections.abc import Callable
from typing import TypeVar

from duetime.errors import DuetimeError, UsageError
from duetime.sdk.calls.call import ApiCall, check_tenant
from duetime.sdk.client.sync_client import Client
from duetime.sdk.errors import ApiError, ConfigurationError, SdkError, ServerUnreachable
from duetime.sdk.server import check_server, look_for_server

T = TypeVar("T")

DEFAULT_URL = "http://127.0.0.1:8080"
#: A person waits: long enough for a node that restarts, not for one that does not exist.
RETRY_SECONDS = 3.0
JSON_MEANING = "the server's JSON, for programs"


class Refused(DuetimeError):
    """The server refused or did not answer: exit code 1."""

    code, title = "refused", "The server refused"


def add_connection_options(parser: argparse.ArgumentParser, *, has_tenant: bool = True) -> None:
    """The server and the key; `has_tenant` is for commands about what tenants own."""
    group = parser.add_argument_group("the server")
    group.add_argument("--url", metavar="URL", help="its address (DUETIME_URL, else that of the data folder)")
    group.add_argument("--key", metavar="KEY", help="the API key (DUETIME_KEY, else that of the data folder)")
    group.add_argument("--data", metavar="DIR", help="data folder of a `duetime up` on this machine (.duetime)")
    if has_tenant:
        group.add_argument(
            "--tenant",
            dest="for_tenant",
            type=_tenant_name,
            metavar="NAME",
            help="act for this tenant; needs an admin key",
        )


def _tenant_name(text: str) -> str:
    try:
        check_tenant(text)
    except ConfigurationError as error:
        raise argparse.ArgumentTypeError(f"'{text}' is not the name of a tenant") from error
    return text


def add_json_option(parser: argparse.ArgumentParser, meaning: str = JSON_MEANING) -> None:
    parser.add_argument("--json", action="store_true", help=meaning)


def find_server(arguments: argparse.Namespace) -> tuple[str, str]:
    """Address and key; raises a UsageError that says what to give."""
    try:
        url, key = look_for_server(arguments.url, arguments.key, data=arguments.data, default_url=DEFAULT_URL)
    except ConfigurationError as error:
        raise UsageError(str(error)) from error
    try:
        # A wrong address is said before a missing key.
        check_server(url, "any")
    except ConfigurationError as error:
        raise UsageError(f"--url: {error}") from error
    if not key:
        raise UsageError(
            f"there is no API key for {url}: give --key, set DUETIME_KEY, or name the data folder of a `duetime up` "
            "with --data"
        )
    return url, key


def open_client(arguments: argparse.Namespace, retry_for: float = RETRY_SECONDS) -> Client:
    url, key = find_server(arguments)
    tenant = getattr(arguments, "for_tenant", None)
    try:
        return Client(url, key, tenant=tenant, retry_for=retry_for)
    except ConfigurationError as error:
        raise UsageError(str(error)) from error


def talk(arguments: argparse.Namespace, action: Callable[[Client], int], retry_for: float = RETRY_SECONDS) -> int:
    """Call something with a client. Every refusal of the server becomes one sentence."""
    url, _ = find_server(arguments)
    with open_client(arguments, retry_for) as client:
        try:
            return action(client)
        except SdkError as error:
            raise complaint(error, url) from error
        except UnicodeEncodeError as error:
            raise UsageError("there are characters in it that are not text: write it in UTF-8") from error


def complaint(error: SdkError, url: str = "") -> DuetimeError:
    """Return the message for the user: wrong input is wrong usage, anything else a refusal."""
    if isinstance(error, ApiError) and error.status == 422:
        return UsageError(sentence_of(error, url))
    return Refused(sentence_of(error, url))


def sentence_of(error: SdkError, url: str = "") -> str:
    match error:
        case ServerUnreachable():
            return f"no server answers at {url} ({_root_of(error)}): is it running? `duetime up` starts one"
        case ApiError() if error.code == "unreadable":
            return f"what {url} answers cannot be read: is it a duetime server?"
        case ApiError() if error.code.startswith("http_"):
            return f"{url} answered with status {error.status} and no word of duetime: is it a duetime server?"
        case ApiError():
            named = [f"{each.path}: {each.message}" if each.path else each.message for each in error.errors]
            text = "; ".join([error.detail, *(each for each in named if each not in error.detail)])
            # Used to find the cause in the server's log.
            return f"{text} (request {error.request_id})" if error.request_id else text
        case _:
            return str(error)


def _root_of(error: BaseException) -> str:
    """Return the error text of the system, without the names of classes around it."""
    deepest: BaseException = error
    while (cause := deepest.__cause__ or deepest.__context__) is not None:
        deepest = cause
    if isinstance(deepest, TimeoutError):
        return "it took too long"
    return (isinstance(deepest, OSError) and deepest.strerror) or str(deepest) or type(deepest).__name__


def ask(client: Client, call: ApiCall[T]) -> tuple[bytes, T]:
    """The answer as it was sent, and what it says."""
    return client.send(call.read_as(lambda body: (body, call.read_body(body))))
