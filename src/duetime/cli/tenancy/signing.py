"""The secret that signs calls to HTTP targets: print it, replace it."""

from duetime.cli.actions import Action, Given, tell
from duetime.cli.arguments import duration
from duetime.cli.output import local_time, print_line, print_note
from duetime.sdk.calls import administration as calls
from duetime.sdk.calls.call import ApiCall
from duetime.sdk.shapes.tenants import SigningSecret


def _rotate(given: Given) -> ApiCall[SigningSecret]:
    return calls.rotate_signing_secret({} if given.overlap is None else {"overlap": given.overlap})


def _say(found: SigningSecret) -> None:
    print_line(found.secret)
    if found.former_until is not None:
        print_note(f"Until {local_time(found.former_until)} calls are signed with the secret before it as well.")
    for note in found.notes:
        print_note(f"{note[:1].upper()}{note[1:]}.")


SIGNING = (
    Action(
        "signing-secret",
        "print the secret that signs calls to HTTP targets",
        tell(lambda _: calls.signing_secret(), _say),
    ),
    Action(
        "rotate-signing-secret",
        "replace the secret that signs calls to HTTP targets, and print the new one",
        tell(_rotate, _say),
        (
            lambda parser: parser.add_argument(
                "--overlap",
                type=duration,
                metavar="DURATION",
                help="how long the former one signs as well (1d; at most 30d)",
            ),
        ),
        "Replace the secret that signs calls to HTTP targets, and print the new one. For the overlap calls "
        "are signed with both, so that receivers can change over.",
    ),
)
