"""Authenticates one connection: SaslHandshake, then SaslAuthenticate requests until the mechanism is done.

Owns the order of the requests (KIP-43, KIP-152) and the time at which the session must be renewed (KIP-368).
Does not own the messages of a mechanism (``security/sasl``), or the connection (``connector``).

While a connection re-authenticates, it carries no other requests: a broker closes it if another request
arrives between SaslHandshake and SaslAuthenticate. Requests sent before these are answered first.

Runs with the loop lock held.
"""

import math
from collections.abc import Callable
from typing import Any

from cyproducer import errors
from cyproducer.base.text import MOST_TEXT, printable
from cyproducer.config import ProducerConfig
from cyproducer.config.option_kinds import Hidden
from cyproducer.net.blocking_tasks import Background, Task
from cyproducer.security.sasl import Compute, Conversation, Send, wire_mechanism
from cyproducer.wire.sasl_api import SaslAuthenticateResponse, SaslHandshakeResponse

UNSUPPORTED_MECHANISM, ILLEGAL_STATE = 33, 34
#: A broker refuses to re-authenticate a connection within a second.
LEAST_INTERVAL_MS = 1050.0
#: The errors with a message for users, raised by conversations and by the functions that they compute with.
#: All but the first are retried soon: a token endpoint that does not respond is treated like a broker that
#: does not respond.
EXPLAINED = (
    errors.SaslAuthenticationFailedError,
    errors.KafkaTimeoutError,
    errors.KafkaConnectionError,
)


class Authentication:
    """The authentication of one connection, repeated before its session ends."""

    def __init__(
        self,
        config: ProducerConfig,
        where: str,
        converse: Callable[[], Conversation],
        background: Background,
        rng: Callable[[], float],
        send_handshake: Callable[[str], None],
        send_authenticate: Callable[[Hidden[bytes]], None],
    ) -> None:
        """
        Args:
            config: the producer's options.
            where: the address, for messages.
            converse: creates the mechanism's conversation.
            background: runs calls that may block.
            rng: returns a float in [0, 1), so that connections renew their sessions at different times.
            send_handshake: sends a SaslHandshake request for the mechanism.
            send_authenticate: sends a SaslAuthenticate request.
        """
        self._config = config
        self._mechanism = str(config.sasl_mechanism)
        self._where = where
        self._converse = converse
        self._background = background
        self._rng = rng
        self._send_handshake = send_handshake
        self._send_authenticate = send_authenticate
        self._conversation: Conversation | None = None
        self._task: Task[Any] | None = None
        self._task_brings = ""
        self._first: Hidden[bytes] | None = None
        self._rounds = 0
        self._note = ""
        self._on_refusal: Callable[[], object] | None = None
        self._done_ms = -math.inf
        #: When the last SaslAuthenticate request was sent.
        self.asked_ms = -math.inf
        #: Whether a function, an endpoint or the mechanism has failed, and not the connection.
        self.failed = False
        #: When to authenticate again.
        self.renew_at_ms = math.inf
        #: When the broker ends the session.
        self.ends_at_ms = math.inf

    def begin(self) -> None:
        """Begins an authentication, which ``resume``, ``on_handshake`` and ``on_authenticate`` continue.

        Raises KafkaError if it can't begin.
        """
        self._first, self._rounds, self.failed = None, 0, False
        self._conversation = self._converse()
        self._continue(None)

    @property
    def unsent(self) -> bool:
        """Whether no request of this authentication has been sent: the previous session is still valid."""
        return self._first is None

    @property
    def waits_for(self) -> str:
        """The outstanding result of another thread, for messages; empty if the broker must respond next."""
        return self._task_brings if self._task is not None else ""

    @property
    def was_accepted(self) -> bool:
        """Whether the broker has accepted this client on this connection: any later round is a renewal."""
        return self._done_ms > -math.inf

    @property
    def waits_for_task(self) -> bool:
        """Whether ``resume`` must be called: the task on another thread is done."""
        return self._task is not None and self._task.done

    def resume(self) -> None:
        """Continues with the result of the task on another thread. Raises KafkaError if the task failed."""
        assert self._task is not None
        task, self._task = self._task, None
        if isinstance(task.error, EXPLAINED):
            raise self._placed(task.error) from None
        if task.error is not None:
            # Shows no repr(), and no UnicodeError as the cause: both contain the text, a credential.
            raise errors.SaslAuthenticationFailedError(
                f"{self._where}: {self._mechanism}: getting the credentials failed: "
                f"{type(task.error).__name__}: {task.error}"
            ) from (None if isinstance(task.error, UnicodeError) else task.error)
        self._continue(task.result)

    def _continue(self, reply: Any) -> bool:
        """Passes a reply to the conversation and performs its next step; returns whether it is complete."""
        assert self._conversation is not None
        try:
            asked = self._conversation.send(reply)
        except StopIteration:
            self._conversation = None
            return True
        except EXPLAINED as error:
            raise self._placed(error) from None
        except Exception as error:
            raise errors.SaslAuthenticationFailedError(
                f"{self._where}: {self._mechanism}: {type(error).__name__}: {error}"
            ) from None
        if isinstance(asked, Compute):
            self._task_brings = asked.waits_for
            self._task = self._background.start(asked.function)
        else:
            assert isinstance(asked, Send)
            self._note, self._on_refusal = asked.note, asked.on_refusal
            if self._first is None:
                self._first = asked.hidden
                self._send_handshake(wire_mechanism(self._config))
            else:
                self._send_authenticate(asked.hidden)
        return False

    def _placed(self, error: Exception) -> errors.KafkaError:
        # Users' functions may raise subclasses, whose constructors are unknown.
        self.failed = True
        kind = next(each for each in EXPLAINED if isinstance(error, each))
        text = error.args[0] if error.args else type(error).__name__
        return kind(f"{self._where}: {self._mechanism}: {text}")

    def on_handshake(self, response: SaslHandshakeResponse) -> None:
        """Handles the SaslHandshake response. Raises KafkaError if the broker rejects the mechanism."""
        code = response.error_code
        if code == UNSUPPORTED_MECHANISM:
            listed = printable(", ".join(response.mechanisms), MOST_TEXT) or "none"
            wire = wire_mechanism(self._config)
            asked = "" if wire == self._mechanism else f", which goes by {wire}"
            raise errors.UnsupportedSaslMechanismError(
                f"{self._where} has no sasl_mechanism={self._mechanism!r}{asked}; it has {listed}"
            )
        if code == ILLEGAL_STATE and not response.mechanisms:
            raise errors.IllegalSaslStateError(
                f"{self._where} has no SASL: set security_protocol="
                f"{self._config.security_protocol.removeprefix('SASL_')!r}, or connect to another listener"
            )
        if code:
            raise errors.for_code(code)(f"{self._where} rejected the SaslHandshake request")
        assert self._first is not None
        self._send_authenticate(self._first)

    def on_authenticate(self, response: SaslAuthenticateResponse, now_ms: float) -> bool:
        """Handles a SaslAuthenticate response; returns whether the connection is authenticated.

        Raises KafkaError if the broker refuses this client, or violates the rules of the mechanism.
        """
        self._rounds += 1
        if response.error_code:
            if self._on_refusal is not None:
                self._on_refusal()
            raise self._refused(response)
        if not self._continue(response.auth_bytes):
            return False
        self._done_ms = now_ms
        lifetime = response.session_lifetime_ms
        self.renew_at_ms = self.ends_at_ms = math.inf
        if lifetime > 0:
            # On the broker, the session began at some time between the request and its response.
            began_ms = max(self.asked_ms, now_ms - lifetime / 2)
            self.ends_at_ms = began_ms + lifetime
            self.renew_at_ms = began_ms + lifetime * (0.85 + 0.1 * self._rng())
        return True

    def may_begin_ms(self) -> float:
        """Returns when the connection may authenticate again."""
        return self._done_ms + LEAST_INTERVAL_MS

    def _refused(self, response: SaslAuthenticateResponse) -> errors.KafkaError:
        text = printable(response.error_message or "", MOST_TEXT)
        user = self._config.sasl_plain_username
        named = f" user {user!r}" if isinstance(user, str) else " this client"
        hint = f"; {self._note}" if self._note else ""
        if self._mechanism.startswith("SCRAM") and self._rounds == 1:
            hint = f"; is there such a user, and has it a {self._mechanism} password?"
        kind = errors.for_code(response.error_code)
        return kind(f"{self._where} refused{named} by {self._mechanism}: {text or kind.__name__}{hint}")
