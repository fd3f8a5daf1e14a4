"""``sasl.jaas.config``: what Java's parser takes, and what the errors say."""

from typing import Any

import pytest

from cyproducer.config import ProducerConfig
from cyproducer.config.jaas import parse
from cyproducer.config.option_kinds import Refused, Secret
from cyproducer.errors import KafkaConfigurationError

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
KRB5 = "com.sun.security.auth.module.Krb5LoginModule"


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("a.b.C required;", {}),
        ("C required x=1y;", None),
        ('C required username="alice" password="secret";', {"username": "alice", "password": "secret"}),
        ("C REQUIRED username='alice';", {"username": "alice"}),
        ("C optional username=alice;", {"username": "alice"}),
        ("C required a=x.y-z_$1;", {"a": "x.y-z_$1"}),
        ('  C\nrequired\n\ta = "x"\n;\n', {"a": "x"}),
        (
            r'C required a="q\"q" b="b\\b" c="n\nn" d="\101";',
            {"a": 'q"q', "b": "b\\b", "c": "n\nn", "d": "A"},
        ),
        (r'C required a="\u00fc";', {"a": "u00fc"}),
        ("C required a='\"' b=\"'\";", {"a": '"', "b": "'"}),
        ('C required a="1" a="2";', {"a": "2"}),
        ('C required // a comment\n a="1"; ', {"a": "1"}),
        ('C required /* a\ncomment */ a="1";', {"a": "1"}),
        ('C required a="//no/*comment*/#";', {"a": "//no/*comment*/#"}),
        ('C required a="ü ﬁ €";', {"a": "ü ﬁ €"}),
        ('C required a="";', {"a": ""}),
    ],
)
def test_what_is_read(text: str, options: dict[str, str] | None) -> None:
    if options is None:
        with pytest.raises(Refused):
            parse(Secret(text))
    else:
        assert parse(Secret(text)) == ("C", {name: Secret(value) for name, value in options.items()})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "must begin with a login module's class and 'required'"),
        ("C", "must begin with a login module's class and 'required'"),
        ('"C" required;', "must begin with a login module's class"),
        ("C needed;", "there must be one of required, requisite, sufficient, optional"),
        ('C required a="geheim"', "must end with ';'"),
        ('C required a="geheim"; D required;', "something behind the ';'"),
        ('C required a="geheim", b="1";', "character 22 is neither"),
        ("C required #no;", "character 12 is neither"),
        ("C required a=;", 'entry 1 has no value: write NAME="VALUE"'),
        ("C required a;", 'entry 1 has no value: write NAME="VALUE"'),
        ("C required password=my geheim;", 'entry 2 has no value: write NAME="VALUE"'),
        ("C required a=b=c;", "entry 2 does not begin with a name"),
        ('C required "geheim"="x";', "entry 1 does not begin with a name"),
        ('C required a="geheim\n";', "character 14 is neither"),
        ('C required a="geheim;', "character 14 is neither"),
        ("C required a=1;", "character 14 is neither"),
    ],
)
def test_what_is_refused(text: str, problem: str) -> None:
    with pytest.raises(Refused) as caught:
        parse(Secret(text))
    assert problem in str(caught.value)
    assert "geheim" not in str(caught.value)


def config(jaas: str, mechanism: str, **more: Any) -> ProducerConfig:
    given = {"sasl.jaas.config": jaas, "sasl.mechanism": mechanism, "security.protocol": "SASL_SSL"}
    return ProducerConfig.from_kwargs(given | more)


@pytest.mark.parametrize(("module", "mechanism"), [(PLAIN, "PLAIN"), (SCRAM, "SCRAM-SHA-512")])
def test_user_and_password_are_taken_from_it(module: str, mechanism: str) -> None:
    made = config(f'{module} required username="alice" password="geheim";', mechanism)
    assert (made.sasl_plain_username, made.sasl_plain_password) == ("alice", Secret("geheim"))
    assert "geheim" not in repr(made) + str(made.as_dict())
    assert ProducerConfig.from_kwargs(made.as_dict()) == made
    assert not made.sasl_delegation_token


def test_a_delegation_token() -> None:
    assert config(
        f'{SCRAM} required username="id" password="hmac" tokenauth="true";', "SCRAM-SHA-256"
    ).sasl_delegation_token


def test_a_keytab() -> None:
    made = config(
        f'{KRB5} required useKeyTab=true storeKey=true keyTab="/etc/a.keytab" principal="alice@EXAMPLE.TEST" '
        'serviceName="events";',
        "GSSAPI",
    )
    assert made.sasl_kerberos_keytab == "/etc/a.keytab"
    assert made.sasl_kerberos_principal == "alice@EXAMPLE.TEST"
    assert made.sasl_kerberos_service_name == "events"
    assert ProducerConfig.from_kwargs(made.as_dict()) == made


def test_a_credential_cache() -> None:
    made = config(f"{KRB5} required useTicketCache=true;", "GSSAPI")
    assert (made.sasl_kerberos_keytab, made.sasl_kerberos_principal) == (None, None)
    assert made.sasl_kerberos_service_name == "kafka"


@pytest.mark.parametrize(
    ("jaas", "mechanism", "more", "problem"),
    [
        (f"{PLAIN} required;", "PLAIN", {}, "PlainLoginModule has no username"),
        (f'{PLAIN} required username="u";', "PLAIN", {}, "PlainLoginModule has no password"),
        (f"{PLAIN} required;", "SCRAM-SHA-256", {}, "no credentials for sasl.mechanism='SCRAM-SHA-256'"),
        ("x.NtLoginModule required;", "GSSAPI", {}, "NtLoginModule is not supported, only Plain"),
        (f"{KRB5} required;", "PLAIN", {}, "Krb5LoginModule has no credentials for sasl.mechanism='PLAIN'"),
        (f'{KRB5} required keyTab="/k";', "GSSAPI", {}, "needs useKeyTab=true and keyTab"),
        (
            f'{KRB5} required useKeyTab=false keyTab="/k";',
            "GSSAPI",
            {},
            "needs useKeyTab=true and keyTab",
        ),
        (f"{KRB5} required useKeyTab=true;", "GSSAPI", {}, "needs useKeyTab=true and keyTab"),
        (f'{KRB5} required ticketCache="/c";', "GSSAPI", {}, "the environment variable KRB5CCNAME"),
        (
            f'{KRB5} required serviceName="events";',
            "GSSAPI",
            {"sasl_kerberos_service_name": "others"},
            "sasl_kerberos_service_name contradicts sasl.jaas.config",
        ),
        (
            f'{PLAIN} required username="u" password="p";',
            "PLAIN",
            {"sasl_plain_username": "v"},
            "sasl_plain_username contradicts sasl.jaas.config",
        ),
        (
            f'{PLAIN} required username="u" password="p";',
            "PLAIN",
            {"sasl_plain_password": "q"},
            "sasl_plain_password contradicts sasl.jaas.config",
        ),
        ("nonsense", "PLAIN", {}, "sasl.jaas.config='***': it must begin with"),
    ],
)
def test_what_does_not_fit_together(jaas: str, mechanism: str, more: dict[str, str], problem: str) -> None:
    with pytest.raises(KafkaConfigurationError) as caught:
        config(jaas, mechanism, **more)
    assert problem in str(caught.value)
