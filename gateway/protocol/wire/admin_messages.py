"""Messages for administrators that kafka-python does not have: delegation tokens, and the brokers and voters of a KRaft
cluster. Its codec reads our definitions (docs/decisions/012)."""

from __future__ import annotations

from typing import Any, ClassVar

from kafka.protocol.api_message import ApiMessage

from gateway.protocol.wire import schemas

_OURS = schemas.__name__


class CreateDelegationTokenRequest(ApiMessage, load_json=_OURS):
    """v3 adds the owner of the token (KIP-373)."""

    CreatableRenewers: ClassVar[Any]


class CreateDelegationTokenResponse(ApiMessage, load_json=_OURS):
    """v3 adds the principal that asked for the token."""


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
    """v3 adds the principal that asked for each token."""


class UnregisterBrokerRequest(ApiMessage, load_json=_OURS):
    """Remove a broker that is down from a KRaft cluster (KIP-500)."""


class UnregisterBrokerResponse(ApiMessage, load_json=_OURS):
    """`error_message` is None without an error."""


class AddRaftVoterRequest(ApiMessage, load_json=_OURS):
    """Add a controller to the voters of the metadata quorum (KIP-853). v1 says when to answer."""

    Listener: ClassVar[Any]


class AddRaftVoterResponse(ApiMessage, load_json=_OURS):
    """`error_message` is None without an error."""


class RemoveRaftVoterRequest(ApiMessage, load_json=_OURS):
    """Remove a controller from the voters of the metadata quorum (KIP-853)."""


class RemoveRaftVoterResponse(ApiMessage, load_json=_OURS):
    """`error_message` is None without an error."""
