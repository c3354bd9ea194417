"""Certificates of the TLS tests, made anew for each session: nothing secret stands in the tree."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import trustme
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)


@dataclass(frozen=True)
class Certificates:
    """Files in PEM: authorities, key stores of a broker, certificate and key of a client."""

    authority: Path
    stranger: Path  # an authority that signed nothing of these
    broker: Path
    misnamed: Path  # of another host
    client: Path
    client_key: Path
    strange_client: Path  # signed by the stranger
    strange_client_key: Path


def make_certificates(folder: Path) -> Certificates:
    """Make all of them below a folder."""
    authority, stranger = trustme.CA(), trustme.CA()
    made = Certificates(
        **{name: folder / f"{name}.pem" for name in Certificates.__dataclass_fields__}
    )
    authority.cert_pem.write_to_path(made.authority)
    stranger.cert_pem.write_to_path(made.stranger)
    _key_store(authority.issue_cert("127.0.0.1", "localhost"), made.broker)
    _key_store(authority.issue_cert("another.example"), made.misnamed)
    for issuer, certificate, key in (
        (authority, made.client, made.client_key),
        (stranger, made.strange_client, made.strange_client_key),
    ):
        issued = issuer.issue_cert("watcher@clients.example")
        certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(key)
    return made


def _key_store(issued: trustme.LeafCert, path: Path) -> None:
    """Write key and certificates as Kafka reads them: the key in PKCS 8, in one file with them."""
    key = load_pem_private_key(issued.private_key_pem.bytes(), None).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    )
    path.write_bytes(key + b"".join(blob.bytes() for blob in issued.cert_chain_pems))
