"""Settings: node id, listeners, their addresses and security protocols."""

from __future__ import annotations

from pydantic import BaseModel, Field

from gateway.settings.addresses import parse_endpoint
from gateway.settings.field_types import INT32_MAX, SECTION_CONFIG, Endpoints, Protocols


class ListenerSettings(BaseModel):
    """Node id, listeners, their addresses and security protocols."""

    model_config = SECTION_CONFIG

    node_id: int = Field(0, ge=0, le=INT32_MAX, description="Kafka's broker id of this gateway.")
    listeners: Endpoints = Field(
        (parse_endpoint("PLAINTEXT://127.0.0.1:9092"),),
        description=(
            "Listeners, each `NAME://HOST:PORT`. Port 0 selects a free port; IPv6 addresses are in "
            "brackets. Loopback by default, so that a listener without authentication is not "
            "exposed to a network by accident."
        ),
    )
    advertised: Endpoints = Field(
        (),
        description=(
            "Addresses given to clients, as `NAME://HOST:PORT` per listener; port 0 stands for the "
            "bound port. By default the bound address, which must then not be 0.0.0.0 or [::]."
        ),
    )
    listener_security_protocol_map: Protocols = Field(
        {},
        description=(
            "Security protocol of each listener: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL. "
            "Listeners with these names need no entry."
        ),
    )
