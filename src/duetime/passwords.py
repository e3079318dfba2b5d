"""Passwords in addresses: hide them in everything that is shown, logged or reported.

An address of PostgreSQL or Redis holds a password.  All code that prints text which
may hold such an address passes it through `hide_passwords` first.
"""

import re

#: This replaces the password in a shown address.
HIDDEN = "…"
# A database password may hold an unescaped slash; the path of a web address may hold an "@".
_DATABASE = re.compile(r"((?:postgres(?:ql)?|rediss?)://[^\s:/?#\"'@]*:)[^\s\"']*@")
_OTHER = re.compile(r"(://[^\s:/?#\"'@]*:)[^\s/?#\"'@]*@")
_QUERY = re.compile(r"([?&](?:ssl)?password=)[^\s&#\"']*")


def hide_passwords(text: str) -> str:
    """The text, with the password of each address in it replaced by an ellipsis."""
    if "://" not in text:
        return text
    text = _DATABASE.sub(rf"\1{HIDDEN}@", text)
    text = _OTHER.sub(rf"\1{HIDDEN}@", text)
    return _QUERY.sub(rf"\1{HIDDEN}", text)
