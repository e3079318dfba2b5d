"""Sign calls as Standard Webhooks 1.0 asks, so that a target can tell ours from anybody's.

The signature is over id, timestamp and the very bytes that are sent.  The
secret is the tenant's; people see it as `whsec_…`.
"""

import base64
import hmac

_PREFIX = "whsec_"


def show_secret(secret: bytes) -> str:
    """The secret as every Standard Webhooks library takes it."""
    return _PREFIX + base64.b64encode(secret).decode()


def sign(secret: bytes, message_id: str, timestamp: int, body: bytes) -> str:
    """The value of the header `webhook-signature`."""
    digest = hmac.digest(secret, f"{message_id}.{timestamp}.".encode() + body, "sha256")
    return "v1," + base64.b64encode(digest).decode()
