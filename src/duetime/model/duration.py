"""Durations as people write them: seconds as a number, or text such as "1h30m".

The text is days, hours, minutes and seconds in that order, each at most once:
"30s", "5m", "2h", "1d", "1h30m", "0.5s".  Everything inside is in seconds.
"""

import math
import re

#: The same rule for readers of the API's schema, whose patterns cannot name groups.
DURATION_PATTERN = (
    r"^(?=.)([0-9]{1,9}(\.[0-9]{1,6})?d)?([0-9]{1,9}(\.[0-9]{1,6})?h)?"
    r"([0-9]{1,9}(\.[0-9]{1,6})?m)?([0-9]{1,9}(\.[0-9]{1,6})?s)?$"
)
_NUMBER = r"([0-9]{1,9}(?:\.[0-9]{1,6})?)"
_TEXT = re.compile(rf"(?:{_NUMBER}d)?(?:{_NUMBER}h)?(?:{_NUMBER}m)?(?:{_NUMBER}s)?")
_SECONDS_OF = (86_400.0, 3_600.0, 60.0, 1.0)
_RIGHT = 'give seconds as a number, or text like "30s", "5m", "2h", "1d", "1h30m"'


def parse_duration(value: object) -> float:
    """Return the seconds. Raise ValueError with a message that says what would be right."""
    match value:
        case bool():
            raise ValueError(_RIGHT)
        case int() | float():
            return _seconds_of_number(value)
        case str():
            found = _TEXT.fullmatch(value)
            if not value or found is None:
                raise ValueError(_RIGHT)
            return sum(float(number) * unit for number, unit in zip(found.groups("0"), _SECONDS_OF, strict=True))
        case _:
            raise ValueError(_RIGHT)


def _seconds_of_number(value: int | float) -> float:
    try:
        seconds = float(value)
    except OverflowError as error:
        raise ValueError(_RIGHT) from error
    if not math.isfinite(seconds):
        raise ValueError(_RIGHT)
    return seconds


def format_duration(seconds: float) -> str:
    """The shortest text that reads back as the same duration, to the microsecond."""
    if seconds < 0:
        raise ValueError("a duration is not negative")
    rest_us = round(seconds * 1_000_000)
    text = ""
    for letter, unit_us in (("d", 86_400_000_000), ("h", 3_600_000_000), ("m", 60_000_000)):
        count, rest_us = divmod(rest_us, unit_us)
        text += f"{count}{letter}" if count else ""
    if rest_us or not text:
        text += f"{rest_us / 1_000_000:.6f}".rstrip("0").rstrip(".") + "s"
    return text
