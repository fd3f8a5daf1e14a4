"""Begins a command's transactions, commits or aborts them within time limits, and reports their outcomes.

Owns the wait for the end of a transaction, which a signal shortens. Does not own the records that are sent in
it, or the decision to commit or abort. Runs on the main thread, where Python delivers signals.
"""

from __future__ import annotations

import enum
import shlex
from typing import TYPE_CHECKING

from cyproducer.cli.console import one_line
from cyproducer.cli.interrupts import Interrupts
from cyproducer.errors import AbortableError, KafkaError

if TYPE_CHECKING:
    from cyproducer import KafkaProducer


class State(enum.Enum):
    """The state of a transaction."""

    NONE = enum.auto()
    OPEN = enum.auto()
    COMMITTING = enum.auto()
    """A commit was requested, and its outcome is not known: the transaction may be committed."""
    COMMITTED = enum.auto()
    ABORTED = enum.auto()


ENDED = (State.COMMITTED, State.ABORTED)


class RunTransaction:
    """One transaction at a time. Not thread-safe.

    Args:
        producer: Has a transactional id, and ``init_transactions()`` has succeeded.
        interrupts: After a signal, the wait for the end of a transaction takes at most
            ``interrupted_timeout_s``.
        interrupted_timeout_s: In seconds.
    """

    def __init__(self, producer: KafkaProducer, interrupts: Interrupts, interrupted_timeout_s: float) -> None:
        self._producer = producer
        self._interrupts = interrupts
        self._interrupted_s = interrupted_timeout_s
        self._max_block_s = producer.config.max_block_ms / 1000
        self._delivery_s = producer.config.delivery_timeout_ms / 1000
        self.state = State.NONE
        self.error: KafkaError | None = None
        """Why the last transaction was not committed, or not aborted."""

    def begin(self) -> None:
        """Begin a transaction.

        Raises:
            ApplicationRecoverableError: Another producer has taken over the transactional id.
        """
        self._producer.begin_transaction()
        self.state, self.error = State.OPEN, None

    def commit(self) -> bool:
        """Commit, or abort if the producer refuses to commit; returns whether it is committed.

        Waits at most ``delivery_timeout_ms`` plus ``max_block_ms`` for a commit, and at most ``max_block_ms``
        for an abort.

        Raises:
            KeyboardInterrupt: A second signal was received. `state` has the state of the transaction.
        """
        self.state = State.COMMITTING
        try:
            timeout_s = self._delivery_s + self._max_block_s
            self._interrupts.in_slices(self._producer.commit_transaction, timeout_s, self._interrupted_s)
        except AbortableError as error:
            self.error = error
            # Only the abort shows whether the coordinator accepted a commit whose response was lost.
            self.abort()
        except KafkaError as error:
            self.error = error
        else:
            self.state = State.COMMITTED
        return self.state is State.COMMITTED

    def abort(self) -> None:
        """Abort a transaction that is not being committed. Waits at most ``max_block_ms``.

        Raises:
            KeyboardInterrupt: A second signal was received.
        """
        try:
            self._interrupts.in_slices(
                self._producer.abort_transaction, self._max_block_s, self._interrupted_s
            )
        except KafkaError as error:
            self.error = self.error or error
        else:
            self.state = State.ABORTED

    def ended(self, records: int) -> str | None:
        """The outcome of the transaction and the ``records`` in it; None if there is nothing to report."""
        cause = "" if self.error is None else f" ({one_line(self.error)})"
        if self.state in (State.NONE, State.COMMITTED):
            return None
        if self.state is State.ABORTED:
            return f"the transaction was aborted: none of its {records:,} records is committed{cause}"
        config = self._producer.config
        if self.state is State.COMMITTING:
            command = f"cyproducer transactions describe {shlex.quote(config.transactional_id or '')}"
            return (
                f"the outcome of the transaction of {records:,} records is not known: "
                f"`{command}` tells it{cause}"
            )
        return (
            f"the transaction could not be aborted, but none of its {records:,} records is committed: the "
            f"brokers abort it after transaction_timeout_ms={config.transaction_timeout_ms:g}, if nothing "
            f"else does before{cause}"
        )
