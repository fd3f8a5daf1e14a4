"""SASL for a `KafkaCluster`: the properties of listeners, and SCRAM users."""

from collections.abc import Mapping
from pathlib import Path

from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._scram import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from tools.harness.kafka_cluster import KafkaCluster
from tools.harness.token_server import TokenServer

KRB5_MODULE = "com.sun.security.auth.module.Krb5LoginModule"
SCRAM = {
    "SCRAM-SHA-256": ScramMechanism.SCRAM_SHA_256,
    "SCRAM-SHA-512": ScramMechanism.SCRAM_SHA_512,
}


def broker_properties(listener: str, users: Mapping[str, str], reauth_ms: int = 0) -> dict[str, object]:
    """The properties of a listener with PLAIN and SCRAM.

    ``users``: user to password, for PLAIN; `create_scram_user` adds those of SCRAM. ``reauth_ms``: after this
    time clients must authenticate again; 0: never.
    """
    prefix = f"listener.name.{listener.lower()}."
    module = "org.apache.kafka.common.security"
    known = " ".join(f'user_{user}="{password}"' for user, password in users.items())
    return {
        f"{prefix}sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        f"{prefix}plain.sasl.jaas.config": f"{module}.plain.PlainLoginModule required {known};",
        f"{prefix}scram-sha-256.sasl.jaas.config": f"{module}.scram.ScramLoginModule required;",
        f"{prefix}scram-sha-512.sasl.jaas.config": f"{module}.scram.ScramLoginModule required;",
        f"{prefix}connections.max.reauth.ms": reauth_ms,
    }


def token_properties(listener: str, server: TokenServer) -> dict[str, object]:
    """The properties of a listener with OAUTHBEARER, whose tokens come from ``server``.

    The broker's JVM must be allowed to read the keys: see ``org.apache.kafka.sasl.oauthbearer.allowed.urls``.
    """
    prefix = f"listener.name.{listener.lower()}."
    oauth = "org.apache.kafka.common.security.oauthbearer"
    return {
        f"{prefix}sasl.enabled.mechanisms": "OAUTHBEARER",
        f"{prefix}oauthbearer.sasl.jaas.config": f"{oauth}.OAuthBearerLoginModule required;",
        f"{prefix}oauthbearer.sasl.server.callback.handler.class": (
            f"{oauth}.OAuthBearerValidatorCallbackHandler"
        ),
        # The default of Kafka 4.1.0 accepts tokens whatever their signature, issuer and audience are.
        f"{prefix}sasl.oauthbearer.jwt.validator.class": f"{oauth}.BrokerJwtValidator",
        f"{prefix}sasl.oauthbearer.jwks.endpoint.url": server.jwks_url,
        f"{prefix}sasl.oauthbearer.expected.audience": "kafka",
        f"{prefix}sasl.oauthbearer.expected.issuer": server.base,
        # Sessions end with their tokens, if there is a limit at all.
        f"{prefix}connections.max.reauth.ms": 3_600_000,
    }


def kerberos_properties(listener: str, keytab: Path, principal: str, reauth_ms: int = 0) -> dict[str, object]:
    """The properties of a listener with GSSAPI. The brokers' JVMs need the KDC's ``jvm_option``.

    ``principal``: ``service/host@REALM``, with its key in ``keytab``. ``reauth_ms``: see `broker_properties`.
    """
    prefix = f"listener.name.{listener.lower()}."
    # The broker only accepts tickets: it needs none of its own, and no KDC.
    options = f'useKeyTab=true storeKey=true isInitiator=false keyTab="{keytab}" principal="{principal}"'
    return {
        f"{prefix}sasl.enabled.mechanisms": "GSSAPI",
        f"{prefix}gssapi.sasl.jaas.config": f"{KRB5_MODULE} required {options};",
        f"{prefix}sasl.kerberos.service.name": principal.partition("/")[0],
        f"{prefix}connections.max.reauth.ms": reauth_ms,
    }


def create_scram_user(
    cluster: KafkaCluster, user: str, password: str, mechanism: str, iterations: int = 4096
) -> None:
    """Creates a SCRAM user, through the listener that needs no authentication."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    credential = ScramCredentialInfo(SCRAM[mechanism], iterations)
    change = UserScramCredentialUpsertion(user, credential, password.encode())
    for done in admin.alter_user_scram_credentials([change]).values():
        done.result(30)
