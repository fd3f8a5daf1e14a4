"""When a bearer token is fetched: kept while it is new, again ahead of its end, never twice at once."""

import math
import threading
from collections.abc import Callable
from typing import Any

import jwt
import pytest

from cyproducer.base.clock import ManualClock
from cyproducer.config import ProducerConfig
from cyproducer.config.option_kinds import Secret
from cyproducer.security.sasl import SharedCredentials
from cyproducer.security.tokens import Token, Tokens, expiry_of
from tools.harness.until import until


class Issuer:
    """A provider: tokens a0, a1, ... that last ``lifetime_s``."""

    def __init__(self, lifetime_s: float | None = 1000) -> None:
        self.clock = ManualClock(unix_ms=1_700_000_000_000)
        self.lifetime_s = lifetime_s
        self.calls = 0
        self.problem: Exception | None = None
        self.before: Callable[[], object] = lambda: None

    def __call__(self, config: str) -> tuple[str, float | None]:
        number = self.calls
        self.calls += 1
        self.before()
        if self.problem is not None:
            raise self.problem
        return f"a{number}", None if self.lifetime_s is None else self.expiry()

    def expiry(self) -> float:
        assert self.lifetime_s is not None
        return self.clock.unix_ms() / 1000 + self.lifetime_s

    def pass_s(self, seconds: float) -> None:
        self.clock.advance_ms(seconds * 1000)
        self.clock.set_unix_ms(self.clock.unix_ms() + int(seconds * 1000))

    def tokens(self, rng: float = 0.0) -> Tokens:
        return Tokens(self, self.clock, lambda: rng)


def in_s(tokens: Tokens, issuer: Issuer) -> float:
    """When the next token is due, in seconds from now."""
    return (tokens.refresh_at_ms - issuer.clock.monotonic_ns() / 1e6) / 1000


@pytest.mark.parametrize(
    ("lifetime_s", "rng", "due_s"),
    [
        (100, 0.0, 80),
        (100, 0.99, 84.95),
        (360, 0.0, 288),
        # 300 s before the end.
        (900, 0.0, 600),
        (361, 0.0, 61),
        (3600, 0.5, 2970),
        (0.5, 0.0, 0.4),
    ],
)
def test_when_a_token_is_fetched_again(lifetime_s: float, rng: float, due_s: float) -> None:
    issuer = Issuer(lifetime_s)
    tokens = issuer.tokens(rng)
    assert tokens.current().text.reveal() == "a0"
    assert in_s(tokens, issuer) == pytest.approx(due_s)
    issuer.pass_s(due_s - 0.01)
    assert tokens.current().text.reveal() == "a0"
    issuer.pass_s(0.02)
    assert tokens.current().text.reveal() == "a1"


@pytest.mark.parametrize("lifetime_s", [None, -1, 0])
def test_a_token_whose_end_is_unknown_is_not_kept(lifetime_s: float | None) -> None:
    issuer = Issuer(lifetime_s)
    tokens = issuer.tokens()
    assert [tokens.current().text.reveal() for _ in range(3)] == ["a0", "a1", "a2"]
    assert tokens.refresh_at_ms == math.inf


def test_the_end_in_milliseconds() -> None:
    issuer = Issuer(900)
    tokens = Tokens(lambda _: ("a", int(issuer.expiry() * 1000)), issuer.clock, lambda: 0.0)
    tokens.current()
    assert in_s(tokens, issuer) == pytest.approx(600)


def test_the_end_in_a_jwt() -> None:
    issuer = Issuer(900)

    class Provider:
        def token(self) -> str:
            return jwt.encode({"exp": int(issuer.expiry())}, "k" * 32, "HS256")

    tokens = Tokens(Provider(), issuer.clock, lambda: 0.0)
    tokens.current()
    assert in_s(tokens, issuer) == pytest.approx(600)


@pytest.mark.parametrize(
    "text", ["", "a", "a.b", "a.b.c", "a.!!.c", "a.e30.c", "a.W10.c", jwt.encode({"a": 1}, "k" * 32, "HS256")]
)
def test_texts_without_an_end(text: str) -> None:
    assert expiry_of(text) is None


@pytest.mark.parametrize("expiry", [True, "soon", None, float("nan"), float("inf"), -1, 10**400])
def test_ends_that_are_none(expiry: Any) -> None:
    issuer = Issuer()
    tokens = Tokens(lambda _: ("a", expiry), issuer.clock, lambda: 0.0)
    assert tokens.current() == Token(Secret("a"), {}, None)


def test_the_old_token_stays_if_fetching_fails(caplog: pytest.LogCaptureFixture) -> None:
    issuer = Issuer(1000)
    given: dict[str, Any] = {"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER"}
    config = ProducerConfig(client_id="shop", sasl_oauth_token_provider=issuer, **given)
    tokens = SharedCredentials(config, issuer.clock, lambda: 0.0).tokens
    assert tokens is not None
    tokens.current()
    issuer.pass_s(700)
    issuer.problem = OSError("the vault is closed")
    assert tokens.current().text.reveal() == "a0"
    until(lambda: "good for another 300 s: OSError: the vault is closed" in caplog.text, "the warning")
    assert all(line.startswith("[producer shop] ") for line in caplog.messages)
    # Not asked again before ten seconds.
    issuer.pass_s(9.9)
    assert tokens.current().text.reveal() == "a0"
    assert issuer.calls == 2
    issuer.pass_s(0.2)
    assert tokens.current().text.reveal() == "a0"
    assert issuer.calls == 3
    issuer.problem = None
    issuer.pass_s(10.1)
    assert tokens.current().text.reveal() == "a3"


def test_an_ended_token_is_not_used() -> None:
    issuer = Issuer(100)
    tokens = issuer.tokens()
    tokens.current()
    issuer.pass_s(100)
    issuer.problem = OSError("the vault is closed")
    with pytest.raises(OSError, match="the vault is closed"):
        tokens.current()
    assert tokens.refresh_at_ms == math.inf
    issuer.problem = None
    assert tokens.current().text.reveal() == "a2"


def test_a_rejected_token_is_not_used_again() -> None:
    issuer = Issuer(100)
    tokens = issuer.tokens()
    tokens.reject(tokens.current())
    assert [tokens.current().text.reveal() for _ in range(2)] == ["a1", "a1"]
    tokens.reject(tokens.current())
    issuer.problem = OSError("the vault is closed")
    with pytest.raises(OSError, match="the vault is closed"):
        tokens.current()


def test_the_provider_is_called_by_one_thread_at_a_time() -> None:
    issuer = Issuer(100)
    tokens = issuer.tokens()
    called, released = threading.Event(), threading.Event()

    def hang() -> None:
        called.set()
        assert released.wait(30)

    issuer.before = hang
    found: list[Token] = []
    threads = [threading.Thread(target=lambda: found.append(tokens.current())) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert called.wait(30)
    assert issuer.calls == 1
    released.set()
    for thread in threads:
        thread.join(30)
    assert [each.text.reveal() for each in found] == ["a0"] * 4


def test_threads_that_wait_for_a_call_share_its_failure() -> None:
    issuer = Issuer(100)
    tokens = issuer.tokens()
    waiting, called = threading.Semaphore(0), threading.Event()
    caught: list[BaseException] = []

    class Counted:
        """The lock, which tells who is about to wait for it."""

        def __init__(self) -> None:
            self._lock = threading.Lock()
            self.release = self._lock.release

        def acquire(self, blocking: bool = True) -> bool:
            if blocking:
                waiting.release()
            return self._lock.acquire(blocking)

    tokens._lock = Counted()  # type: ignore[assignment]

    def fail() -> None:
        called.set()
        for _ in range(3):
            assert waiting.acquire(timeout=30)
        raise OSError("the vault is closed")

    def ask() -> None:
        try:
            tokens.current()
        except OSError as error:
            caught.append(error)

    issuer.before = fail
    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
        assert called.wait(30)
    for thread in threads:
        thread.join(60)
    assert [str(each) for each in caught] == ["the vault is closed"] * 4
    assert issuer.calls == 1
    # The next one asks again.
    issuer.before = lambda: None
    assert tokens.current().text.reveal() == "a1"


def test_while_the_provider_hangs_the_old_token_does() -> None:
    issuer = Issuer(100)
    tokens = issuer.tokens()
    tokens.current()
    issuer.pass_s(90)
    called, released = threading.Event(), threading.Event()

    def hang() -> None:
        called.set()
        assert released.wait(30)

    issuer.before = hang
    thread = threading.Thread(target=tokens.current)
    thread.start()
    assert called.wait(30)
    assert tokens.current().text.reveal() == "a0"
    released.set()
    thread.join(30)
    assert tokens.current().text.reveal() == "a1"


def test_a_token_shows_neither_itself_nor_its_extensions() -> None:
    assert repr(Token(Secret("geheim"), {"a": "geheim"}, 1.0)) == "Token(***)"
