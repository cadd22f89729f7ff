"""Admin messages that kafka-python lacks: delegation tokens, and brokers and voters of a KRaft
cluster.

Its codec reads the definitions in `schemas` (docs/decisions/012).
"""

from __future__ import annotations

from typing import Any, ClassVar

from kafka.protocol.api_message import ApiMessage

from gateway.protocol.wire import schemas

_OURS = schemas.__name__


class CreateDelegationTokenRequest(ApiMessage, load_json=_OURS):
    """v3 adds the owner of the token (KIP-373)."""

    CreatableRenewers: ClassVar[Any]


class CreateDelegationTokenResponse(ApiMessage, load_json=_OURS):
    """v3 adds the principal that requested the token."""


class RenewDelegationTokenRequest(ApiMessage, load_json=_OURS):
    """The same in all versions."""


class RenewDelegationTokenResponse(ApiMessage, load_json=_OURS):
    """The same in all versions."""


class ExpireDelegationTokenRequest(ApiMessage, load_json=_OURS):
    """The same in all versions."""


class ExpireDelegationTokenResponse(ApiMessage, load_json=_OURS):
    """The same in all versions."""


class DescribeDelegationTokenRequest(ApiMessage, load_json=_OURS):
    """`owners` is None for all tokens."""

    DescribeDelegationTokenOwner: ClassVar[Any]


class DescribeDelegationTokenResponse(ApiMessage, load_json=_OURS):
    """v3 adds the principal that requested each token."""


class UnregisterBrokerRequest(ApiMessage, load_json=_OURS):
    """Removes a stopped broker from a KRaft cluster (KIP-500)."""


class UnregisterBrokerResponse(ApiMessage, load_json=_OURS):
    """`error_message` is None without an error."""


class AddRaftVoterRequest(ApiMessage, load_json=_OURS):
    """Adds a controller to the voters of the metadata quorum (KIP-853). v1 says when to reply."""

    Listener: ClassVar[Any]


class AddRaftVoterResponse(ApiMessage, load_json=_OURS):
    """`error_message` is None without an error."""


class RemoveRaftVoterRequest(ApiMessage, load_json=_OURS):
    """Removes a controller from the voters of the metadata quorum (KIP-853)."""


class RemoveRaftVoterResponse(ApiMessage, load_json=_OURS):
    """`error_message` is None without an error."""
