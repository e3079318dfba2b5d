"""Names for what is imported: short, unique, and the same again for the same file."""

import re
import unicodedata

_LONGEST = 60


def slug(text: str) -> str:
    """Lower-case letters, digits and hyphens; empty if there are none."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    short = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")
    return short[:_LONGEST].rstrip("-")


class Names:
    def __init__(self) -> None:
        self._taken: set[str] = set()

    def take(self, wanted: str, fingerprint: str) -> str:
        """The wanted name; if it is taken, with a part made of what it stands for, not of its place."""
        name, number = wanted, 1
        while name in self._taken:
            name = f"{wanted}-{fingerprint[:6]}" + (f"-{number}" if number > 1 else "")
            number += 1
        self._taken.add(name)
        return name
