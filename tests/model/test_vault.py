"""Sealed secrets: they open with their key, for their tenant and under their name, and otherwise not at all."""

import base64

import pytest

from duetime.errors import UsageError
from duetime.model.vault import FINGERPRINT_BYTES, SealError, Vault, is_same_fingerprint, key_id_of
from duetime.secret_keys import read_key

OLD, NEW = b"o" * 32, b"n" * 32
SECRET = "Bearer abc.def"


def test_what_is_sealed_opens_again_whatever_the_case_of_its_name() -> None:
    sealed = Vault([OLD]).seal(7, "Authorization", SECRET)

    assert Vault([NEW, OLD]).open(7, "AUTHORIZATION", sealed) == SECRET
    assert "abc" not in sealed


def test_the_same_secret_is_sealed_to_the_same_text() -> None:
    vault = Vault([OLD])

    assert vault.seal(7, "Cookie", SECRET) == vault.seal(7, "cookie", SECRET)
    others = {
        vault.seal(8, "Cookie", SECRET),
        vault.seal(7, "X-Api-Key", SECRET),
        vault.seal(7, "Cookie", SECRET + "!"),
    }
    assert len(others | {Vault([NEW]).seal(7, "Cookie", SECRET), vault.seal(7, "Cookie", SECRET)}) == 5


@pytest.mark.parametrize(("tenant", "name"), [(8, "Cookie"), (7, "X-Api-Key")])
def test_it_does_not_open_elsewhere(tenant: int, name: str) -> None:
    vault = Vault([OLD])

    with pytest.raises(SealError, match="another tenant or header"):
        vault.open(tenant, name, vault.seal(7, "Cookie", SECRET))


def test_without_its_key_it_does_not_open_and_the_key_is_named() -> None:
    sealed = Vault([OLD]).seal(7, "Cookie", SECRET)

    with pytest.raises(SealError, match=key_id_of(sealed)):
        Vault([NEW]).open(7, "Cookie", sealed)


@pytest.mark.parametrize("place", range(9, 90, 10))
def test_a_changed_text_does_not_open(place: int) -> None:
    sealed = Vault([OLD]).seal(7, "Cookie", SECRET)
    place = min(place, len(sealed) - 2)
    changed = sealed[:place] + ("A" if sealed[place] != "A" else "B") + sealed[place + 1 :]

    with pytest.raises(SealError):
        Vault([OLD]).open(7, "Cookie", changed)


@pytest.mark.parametrize("text", ["", ".", "no-key", "\ud800.x"])
def test_what_is_no_sealed_text_does_not_open(text: str) -> None:
    with pytest.raises(SealError):
        Vault([OLD]).open(7, "Cookie", text)


def test_digests_of_the_same_data_meet_under_any_order_of_the_keys() -> None:
    stored = Vault([OLD]).digest(b"data")[:FINGERPRINT_BYTES]

    assert is_same_fingerprint(stored, Vault([NEW, OLD]).digest(b"data"))
    assert not is_same_fingerprint(stored, Vault([NEW]).digest(b"data"))
    assert not is_same_fingerprint(stored, Vault([OLD]).digest(b"other"))


@pytest.mark.parametrize("text", [OLD.hex(), base64.b64encode(b"\xff" * 32).decode(), "_" * 42 + "8"])
def test_a_key_is_32_bytes_in_hexadecimal_or_base64(text: str) -> None:
    assert len(read_key(text)) == 32


@pytest.mark.parametrize("text", ["", "ab", "z" * 64, base64.b64encode(b"k" * 31).decode(), "é" * 43])
def test_anything_else_is_no_key_and_is_not_repeated(text: str) -> None:
    with pytest.raises(ValueError, match="openssl rand -base64 32") as raised:
        read_key(text)

    assert not isinstance(raised.value, UsageError)
    assert not text or text not in str(raised.value)
