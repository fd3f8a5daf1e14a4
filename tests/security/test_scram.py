"""SCRAM: the example of RFC 7677, and servers that do not keep to it."""

import base64

import pytest

from cyproducer.config.option_kinds import Secret
from cyproducer.errors import SaslAuthenticationFailedError
from cyproducer.security.scram import Scram

NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def exchange(user: str = "user", password: str = "pencil") -> Scram:
    return Scram("SCRAM-SHA-256", user, Secret(password), nonce=NONCE)


def test_the_example_of_the_rfc() -> None:
    scram = exchange()
    assert scram.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    scram.read_first(SERVER_FIRST)
    assert scram.final(scram.salted_password()) == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    scram.read_final(SERVER_FINAL)


@pytest.mark.parametrize(
    ("user", "written"), [("n,a=m", "n=2Ca=3Dm"), ("=2C", "=3D2C"), ("jörg", "jörg"), ("a\nb", "a\nb")]
)
def test_names_are_escaped_and_plain_utf_8(user: str, written: str) -> None:
    assert exchange(user).first() == f"n,,n={written},r={NONCE}".encode()


def test_a_delegation_token_says_so() -> None:
    scram = Scram("SCRAM-SHA-512", "id", Secret("hmac"), token=True, nonce=NONCE)
    assert scram.first() == f"n,,n=id,r={NONCE},tokenauth=true".encode()


def test_each_exchange_has_a_nonce_of_its_own() -> None:
    firsts = {Scram("SCRAM-SHA-256", "u", Secret("p")).first() for _ in range(100)}
    assert len(firsts) == 100
    assert all(len(first.partition(b"r=")[2]) >= 20 for first in firsts)


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (SERVER_FIRST.replace(b"rOpr", b"xOpr"), "nonce does not continue"),
        (f"r={NONCE},s=W22Z,i=4096".encode(), "nonce does not continue"),
        (SERVER_FIRST.replace(b"i=4096", b"i=4095"), "iteration count is 4095: allowed are 4096 to 1000000"),
        (SERVER_FIRST.replace(b"i=4096", b"i=1"), "iteration count is 1:"),
        (SERVER_FIRST.replace(b"i=4096", b"i=1000001"), "iteration count is 1000001"),
        (SERVER_FIRST.replace(b"i=4096", b"i=2147483647"), "iteration count is 2147483647"),
        (SERVER_FIRST.replace(b"i=4096", b"i=99999999999999999999"), "no iteration count"),
        (SERVER_FIRST.replace(b"i=4096", b"i=-4096"), "no iteration count"),
        (SERVER_FIRST.replace(b",i=4096", b""), "no iteration count"),
        (SERVER_FIRST.replace(b"s=W22ZaJ0SNY7soEsUEjb6gQ==", b"s="), "no valid salt"),
        (SERVER_FIRST.replace(b"s=W22Z", b"s=!!!"), "no valid salt"),
        (SERVER_FIRST.replace(b"s=W22Z", "s=ü".encode()), "no valid salt"),
        (b"m=new," + SERVER_FIRST, "demands an extension"),
        (b"e=other-error", "reports the SCRAM error 'other-error'"),
        (b"\xff", "not UTF-8"),
        (b"", "malformed"),
        (b"r", "malformed"),
    ],
)
def test_first_messages_that_are_refused(message: bytes, problem: str) -> None:
    scram = exchange()
    scram.first()
    with pytest.raises(SaslAuthenticationFailedError, match=problem):
        scram.read_first(message)


@pytest.mark.parametrize("count", [4096, 1_000_000])
def test_the_bounds_of_the_iteration_count_are_accepted(count: int) -> None:
    scram = exchange()
    scram.read_first(SERVER_FIRST.replace(b"i=4096", b"i=%d" % count))
    assert scram.iterations == count


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (b"v=" + base64.b64encode(bytes(32)), "signature is wrong"),
        (b"v=", "signature is wrong"),
        (b"v=!!", "signature is wrong"),
        ("v=ü".encode(), "signature is wrong"),
        (b"x=1", "signature is wrong"),
        (b"e=invalid-proof", "reports the SCRAM error 'invalid-proof'"),
    ],
)
def test_a_server_that_does_not_know_the_password_is_refused(message: bytes, problem: str) -> None:
    scram = exchange()
    scram.read_first(SERVER_FIRST)
    scram.final(scram.salted_password())
    with pytest.raises(SaslAuthenticationFailedError, match=problem):
        scram.read_final(message)


def test_a_final_message_that_comes_too_early_is_refused() -> None:
    with pytest.raises(SaslAuthenticationFailedError, match="signature is wrong"):
        exchange().read_final(b"v=")
