"""Durations in the forms that callers use: seconds, a text with a unit, or a timedelta."""

from datetime import timedelta

from duetime.sdk.errors import Duration


def as_duration(value: Duration | None) -> float | str | None:
    """Return a duration in a form that the API accepts: seconds, or a text like "5m"."""
    return value.total_seconds() if isinstance(value, timedelta) else value


_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds_of(value: Duration) -> float:
    """Return a duration in seconds: 1.5, "90s", "5m", "2h", "1d" or a timedelta."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, str):
        number = value.rstrip("abcdefghijklmnopqrstuvwxyz")
        unit = value[len(number) :] or "s"
        try:
            return float(number) * _UNITS[unit]
        except (ValueError, KeyError):
            raise ValueError(f'"{value}" is not a duration: use seconds, or "30s", "5m", "2h", "1d"') from None
    return float(value)
