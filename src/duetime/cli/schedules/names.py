"""Names for imported schedules: short, unique, and the same each time for the same file."""

import re
import unicodedata

_LONGEST = 60


def slug(text: str) -> str:
    """Reduce a text to lower-case letters, digits and hyphens. The result may be empty."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    short = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")
    return short[:_LONGEST].rstrip("-")


class Names:
    def __init__(self) -> None:
        self._taken: set[str] = set()

    def take(self, wanted: str, fingerprint: str) -> str:
        """Return the wanted name. If it is taken, add a part that depends on its content, not on its position."""
        name, number = wanted, 1
        while name in self._taken:
            name = f"{wanted}-{fingerprint[:6]}" + (f"-{number}" if number > 1 else "")
            number += 1
        self._taken.add(name)
        return name
