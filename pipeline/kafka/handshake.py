"""Handshake: why a broker cannot be used over TLS, in words that name the setting.

Kafka clients try every server, log what went wrong with each and in the end say only that none was
there. So where one fails, its handshake is done again here, and what TLS says is looked at.
"""

from __future__ import annotations

import asyncio
import ssl
import struct

TIMEOUT_S = 5.0
# ApiVersions, version 0, without a client's name: what every Kafka answers before any login.
_QUESTION = struct.pack(">ihhih", 10, 18, 0, 1, -1)

_MISNAMED = frozenset({62, 63, 64})  # X509_V_ERR_HOSTNAME_MISMATCH, _EMAIL_MISMATCH, _IP_…
_EXPIRED = 10  # X509_V_ERR_CERT_HAS_EXPIRED
_NO_TLS = frozenset(
    {"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNEXPECTED_EOF_WHILE_READING"}
)
# Alerts by which a server refuses a client's certificate, or that there is none.
_REFUSED = frozenset(
    {
        "SSLV3_ALERT_BAD_CERTIFICATE",
        "SSLV3_ALERT_CERTIFICATE_EXPIRED",
        "SSLV3_ALERT_CERTIFICATE_UNKNOWN",
        "SSLV3_ALERT_HANDSHAKE_FAILURE",
        "TLSV13_ALERT_CERTIFICATE_REQUIRED",
        "TLSV1_ALERT_UNKNOWN_CA",
    }
)


async def tls_problem(servers: str, context: ssl.SSLContext, has_certificate: bool) -> str | None:
    """Return what is wrong with the TLS of the first server for which something is.

    Parameters
    ----------
    servers
        ``host:port,…``.
    context
        As the client uses it.
    has_certificate
        Whether it holds a certificate of ours.

    Returns
    -------
    str or None
        What is wrong and what to do; None where TLS is not to blame.
    """
    for server in servers.split(","):
        host, _, port = server.strip().rpartition(":")
        host = host.strip("[]")
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await _question(host, int(port), context)
        except ssl.SSLError as error:
            return _in_words(host, error, has_certificate)
        except (ConnectionResetError, ConnectionAbortedError, BrokenPipeError, EOFError):
            return (
                "it ends the connection instead of shaking hands; see security_protocol and the "
                "port (does it speak TLS there?), and ssl_certfile if it asks for a certificate"
            )
        except OSError:  # TimeoutError is one: nobody is there
            continue
    return None


async def _question(host: str, port: int, context: ssl.SSLContext) -> None:
    """Shake hands and ask something: in TLS 1.3 a server refuses a client only afterwards."""
    reader, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname=host)
    try:
        writer.write(_QUESTION)
        await writer.drain()
        await reader.readexactly(4)
    finally:
        writer.transport.abort()


def _in_words(host: str, error: ssl.SSLError, has_certificate: bool) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        why = error.verify_message.rstrip(".")
        if error.verify_code in _MISNAMED:
            return (
                f"its TLS certificate is not made for {host!r} ({why}); name the broker as its "
                "certificate does, or give it a certificate with this name"
            )
        if error.verify_code == _EXPIRED:
            return f"its TLS certificate has expired ({why}); renew it"
        return (
            f"its TLS certificate is not trusted ({why}); set ssl_cafile to the certificate of the "
            "authority that has signed it"
        )
    reason = error.reason or type(error).__name__
    if reason in _REFUSED and has_certificate:
        return f"it does not accept our client certificate ({reason}); see ssl_certfile"
    if reason in _REFUSED:
        return (
            f"it asks for a client certificate ({reason}); set ssl_certfile and ssl_keyfile to one "
            "that it trusts"
        )
    if reason in _NO_TLS:
        return f"it does not speak TLS there ({reason}); see security_protocol and the port"
    return f"TLS fails ({reason}); see security_protocol, ssl_cafile and ssl_certfile"
