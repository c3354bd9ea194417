"""How to reach Kafka: one place that turns settings into client arguments."""

from __future__ import annotations

import ssl
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.conn import create_conn
from aiokafka.errors import (
    AuthenticationFailedError,
    IllegalSaslStateError,
    KafkaError,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanismError,
)
from aiokafka.helpers import create_ssl_context

from ontrack.pipeline.kafka.coordinators import wait_for_coordinators_quietly
from ontrack.pipeline.kafka.handshake import tls_problem
from ontrack.pipeline.kafka.headers import read_any_header_name
from ontrack.pipeline.settings import Settings
from ontrack.topics.catalog import Catalogue, catalogue
from ontrack.topics.errors import BrokerUnavailable, InvalidSettings

_LOGIN_REFUSED = (
    AuthenticationFailedError,
    IllegalSaslStateError,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanismError,
)
# Of every consumer: Faust's driver is one of aiokafka's, too.
read_any_header_name()
wait_for_coordinators_quietly()
REQUEST_BYTES_MAX = 9 * 1_048_576  # a dead letter holds an over-limit message in base64


def topics_of(settings: Settings) -> Catalogue:
    """Return the catalogue that the settings describe."""
    return catalogue(settings.topic_prefix, settings.partitions, settings.replication)


def client_arguments(settings: Settings) -> dict[str, Any]:
    """Return the arguments that every aiokafka client takes.

    Raises
    ------
    InvalidSettings
        SASL is asked for without mechanism, user or password.
    """
    arguments: dict[str, Any] = {
        "bootstrap_servers": settings.broker,
        "client_id": settings.instance or settings.group,
        "security_protocol": settings.security_protocol,
    }
    if settings.security_protocol.startswith("SASL"):
        arguments |= {
            "sasl_mechanism": _needed(settings.sasl_mechanism, "sasl_mechanism"),
            "sasl_plain_username": _needed(settings.sasl_username, "sasl_username"),
            "sasl_plain_password": _needed(
                settings.sasl_password, "sasl_password"
            ).get_secret_value(),
        }
    context = ssl_context(settings)
    if context is not None:
        arguments["ssl_context"] = context
    return arguments


def ssl_context(settings: Settings) -> ssl.SSLContext | None:
    """Return the TLS context, or None where TLS is off.

    Raises
    ------
    InvalidSettings
        A certificate or key file cannot be read.
    """
    if not settings.security_protocol.endswith("SSL"):
        return None
    files = (settings.ssl_cafile, settings.ssl_certfile, settings.ssl_keyfile)
    try:
        context: ssl.SSLContext = create_ssl_context(
            cafile=settings.ssl_cafile,
            certfile=settings.ssl_certfile,
            keyfile=settings.ssl_keyfile,
        )
    except OSError as error:  # ssl.SSLError is one
        named = ", ".join(repr(file) for file in files if file is not None)
        raise InvalidSettings(
            f"TLS cannot be set up from {named or 'the system certificates'}: {error}; "
            "see ssl_cafile, ssl_certfile and ssl_keyfile"
        ) from error
    return context


def _needed(value: Any, name: str) -> Any:
    if value is None:
        raise InvalidSettings(
            f"security_protocol asks for SASL, but {name} is not set; "
            f"set ONTRACK_{name.upper()} or {name} in ontrack.toml"
        )
    return value


def unreachable(
    settings: Settings, error: Exception, problem: str | None = None
) -> BrokerUnavailable:
    """Return the error to show when Kafka does not answer.

    Parameters
    ----------
    problem
        What is known to be wrong, and what to do, where more is known than the client's error.
    """
    if problem is not None:
        return BrokerUnavailable(f"Kafka at {settings.broker} cannot be used: {problem}")
    return BrokerUnavailable(
        f"Kafka at {settings.broker} does not answer ({type(error).__name__}: {error}); "
        "start one (make kafka, or docker compose up kafka) or name it with --broker HOST:PORT"
    )


async def problem_of(settings: Settings) -> str | None:
    """Find out why a client could not start, where a cause can be told from many."""
    context = ssl_context(settings)
    if context is not None:
        found = await tls_problem(settings.broker, context, settings.ssl_certfile is not None)
        if found is not None:
            return found
    return await _login_problem(settings) if "SASL" in settings.security_protocol else None


async def _login_problem(settings: Settings) -> str | None:
    arguments = client_arguments(settings)
    for server in arguments.pop("bootstrap_servers").split(","):
        host, _, port = server.strip().rpartition(":")
        try:
            connection = await create_conn(host, int(port), request_timeout_ms=5000, **arguments)
        except (
            AuthenticationFailedError,
            SaslAuthenticationFailed,
            UnsupportedSaslMechanismError,
            IllegalSaslStateError,
        ) as no:
            return (
                f"it refuses the login of {settings.sasl_username!r} by {settings.sasl_mechanism} "
                f"({type(no).__name__}); see sasl_username, sasl_password and sasl_mechanism"
            )
        except (KafkaError, OSError):  # nobody is there: the client's error says so
            continue
        connection.close()
    return None


async def start_producer(settings: Settings, linger_ms: int = 2) -> AIOKafkaProducer:
    """Return a started idempotent producer whose sends are acknowledged by all replicas.

    Parameters
    ----------
    linger_ms
        How long messages wait for others to the same partition.
    """
    producer = AIOKafkaProducer(
        **client_arguments(settings),
        acks="all",
        enable_idempotence=True,
        linger_ms=linger_ms,
        max_batch_size=131_072,
        max_request_size=REQUEST_BYTES_MAX,
    )
    await start(settings, producer)
    return producer


async def start_consumer(
    settings: Settings, fetch_wait_ms: int = 50, **arguments: Any
) -> AIOKafkaConsumer:
    """Return a started consumer without a group: it never touches anybody's offsets.

    Parameters
    ----------
    fetch_wait_ms
        How long the broker may hold a fetch where there is nothing.
    """
    consumer = AIOKafkaConsumer(
        **client_arguments(settings),
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        fetch_max_wait_ms=fetch_wait_ms,
        max_partition_fetch_bytes=8 * 1_048_576,
        **arguments,
    )
    await start(settings, consumer)
    return consumer


async def start_admin(settings: Settings) -> AIOKafkaAdminClient:
    """Return a started admin client."""
    admin = AIOKafkaAdminClient(**client_arguments(settings))
    try:
        await admin.start()
    except (KafkaError, OSError) as error:
        await admin.close()
        raise unreachable(settings, error, await problem_of(settings)) from error
    return admin


async def start(settings: Settings, client: AIOKafkaConsumer | AIOKafkaProducer) -> None:
    """Start a client.

    Raises
    ------
    BrokerUnavailable
        Kafka does not answer, or refuses it; with the cause where it can be told.
    """
    try:
        await client.start()
    except (KafkaError, OSError) as error:
        await client.stop()
        raise unreachable(settings, error, await problem_of(settings)) from error
