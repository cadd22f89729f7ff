"""Translates the names in the messages of a client that is bound to a namespace.

This is the only place: behind it, handlers see names as the gateway uses them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from gateway.protocol.routes import EncodedReply
from gateway.protocol.wire.named_fields import Renaming, rename
from gateway.topics.tenant_scope import TenantScope

#: Translations kept; the served namespaces are few.
_MAX_SCOPES = 1_000


def request_from_client(request: Any, version: int, scope: TenantScope) -> Any:
    """Return the request with the names that the gateway uses."""
    return rename(request, version, _renaming(scope, to_client=False))


def reply_to_client(reply: Any, version: int, scope: TenantScope) -> Any:
    """Return the reply with the names that the client uses.

    An encoded reply was translated before it was encoded. Raises ForeignName for a name outside of
    the scope, which must not be sent.
    """
    if isinstance(reply, EncodedReply):
        return reply
    return rename(reply, version, _renaming(scope, to_client=True))


@lru_cache(_MAX_SCOPES)
def _renaming(scope: TenantScope, *, to_client: bool) -> Renaming:
    if to_client:
        return Renaming(scope.topic_to_client, scope.id_to_client, scope.text_to_client)
    return Renaming(scope.topic_from_client, scope.id_from_client, str)
