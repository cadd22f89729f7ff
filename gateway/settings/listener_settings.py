"""Settings: node id, listeners, and what may differ between listeners."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, Field
from pydantic_settings import NoDecode

from gateway.settings.addresses import parse_endpoint
from gateway.settings.field_types import (
    INT32_MAX,
    SECTION_CONFIG,
    Endpoints,
    File,
    Files,
    Mechanisms,
    Networks,
    Protocols,
    TlsVersion,
    read_table,
)

#: Workers of one supervisor; more than a machine has cores.
MAX_WORKERS = 128


class PerListenerSettings(BaseModel):
    """Settings for all listeners that `[listener.NAME]` overrides for one.

    In such a table, `model_fields_set` holds the overridden settings.
    """

    model_config = SECTION_CONFIG

    ssl_certificate_file: File | None = Field(
        None,
        description=(
            "PEM file with the server's certificate, followed by its chain. Reloaded when it "
            "changes."
        ),
    )
    ssl_key_file: File | None = Field(
        None, description="PEM file with the certificate's private key. Reloaded when it changes."
    )
    ssl_key_password_file: File | None = Field(
        None,
        description=(
            "File with the key's passphrase in its first line. A file, so that the passphrase is "
            "not visible in process lists."
        ),
    )
    ssl_ca_file: File | None = Field(
        None, description="PEM file with the authorities that sign client certificates."
    )
    ssl_client_auth: Literal["none", "requested", "required"] = Field(
        "none",
        description=(
            "Whether TLS clients must present a certificate. As in Kafka. With `requested` a "
            "client without one is User:ANONYMOUS."
        ),
    )
    ssl_crl_file: File | None = Field(
        None,
        description=(
            "PEM file with the revocation list of each authority in `ssl_ca_file`. Revoked client "
            "certificates are refused, and all of an authority without a list that is still valid. "
            "Reloaded when it changes; open connections stay open."
        ),
    )
    ssl_server_name_files: Files = Field(
        (),
        description=(
            "Further certificates for clients that ask for another server name (SNI): PEM files, "
            "each with a private key without passphrase, the certificate and its chain. A client "
            "gets the one whose subjectAltName has the name. Reloaded when they change."
        ),
    )
    ssl_principal_mapping_rules: str = Field(
        "DEFAULT",
        description=(
            "Rules that map the subject of a client certificate to a principal, as in Kafka: "
            "`RULE:PATTERN/REPLACEMENT/[LU]`, separated by commas; the first that matches is used. "
            "Patterns are in RE2 syntax. `DEFAULT` is the whole subject, such as "
            "`User:CN=app,O=Example`. Used by SSL listeners; with SASL the user name counts."
        ),
    )
    ssl_min_version: TlsVersion = Field(
        "TLSv1.2",
        description=(
            "Oldest TLS version accepted. Clients on Java 7 or older use TLSv1 by default; "
            "enabling it also enables its weak signature algorithms."
        ),
    )
    sasl_enabled_mechanisms: Mechanisms = Field(
        ("PLAIN",), description="SASL mechanisms offered by SASL listeners."
    )
    proxy_protocol_from: Networks = Field(
        (),
        description=(
            "Addresses and networks (10.0.0.0/8) of the proxies in front of the listeners. Each "
            "connection must then begin with a header of the PROXY protocol, version 1 or 2; "
            "limits, ACLs and logs use the client address in it. Connections from other addresses "
            "are refused, since they could state any address. Empty: no header is expected."
        ),
    )


Overrides = Annotated[
    Mapping[str, Annotated[PerListenerSettings, Field(strict=False)]],
    BeforeValidator(read_table),
    NoDecode,
]


class ListenerSettings(BaseModel):
    """Node id, listeners, their addresses and security protocols."""

    model_config = SECTION_CONFIG

    node_id: int | None = Field(
        None,
        ge=0,
        le=INT32_MAX,
        description=(
            "Kafka's broker id of this gateway. Without one, the gateway takes the id that one of "
            "its advertised addresses had last, otherwise a free one; 0 with `lmdb`. Set it if the "
            "id must stay the same when the addresses change."
        ),
    )
    workers: int = Field(
        1,
        ge=1,
        le=MAX_WORKERS,
        description=(
            "Gateway processes to run on this machine, each a node of the cluster: the node id and "
            "the ports of the listeners rise by one from worker to worker. Not with `lmdb`."
        ),
    )
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
    listener: Overrides = Field(
        {},
        description=(
            "Settings of single listeners, from the next section: a table `[listener.NAME]` in "
            "the file, `KOPGATE_LISTENER__NAME__SETTING` in the environment, `--set "
            "listener.NAME.SETTING=VALUE`. An empty value unsets a file."
        ),
    )
