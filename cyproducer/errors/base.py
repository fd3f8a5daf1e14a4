"""The roots of the exception tree, and the register of error codes.

Owns the base classes of every other error, the text form of an error, and the map from a Kafka error code to
its class. Does not own the codes (``errors.codes``, ``errors.other_codes``) or the client's own errors
(``errors``, the module to import from). Any thread may raise and catch them. The modules of the codes fill
the register while they are imported; ``errors.for_code`` adds codes that this version does not know.

Names and hierarchy are kafka-python's, so that ``except`` clauses written for it keep working.
"""

from __future__ import annotations

import copy
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

from cyproducer.base.text import printable
from cyproducer.errors.error_code import ErrorCode
from cyproducer.errors.other_clients import MODULES, adopt

if TYPE_CHECKING:
    from cyproducer.futures.bulk_future import BulkFuture


#: The modules of other clients whose errors are not bases of these yet: see ``errors/other_clients``.
_strangers = list(MODULES)


class _Root(Exception):
    """Only a base class: Python cannot change the bases of a class whose only base is ``Exception``."""


class KafkaError(_Root):
    """The base class of all of cyproducer's own exceptions.

    ``retriable`` says whether the same operation may succeed later without any change,
    ``invalid_metadata`` whether the metadata must be fetched again before that.
    """

    retriable: ClassVar[bool] = False
    invalid_metadata: ClassVar[bool] = False
    #: On an error from a future: False if the record is certainly not in the log; True if it may be there,
    #: once; None if the error is not about a record.
    maybe_written: bool | None = None
    #: On an error in the middle of ``send_arrow()`` or ``send_many()``: how many rows, counted from the first
    #: one, were accepted before the error, and their future. Other exceptions, including those from Ctrl-C,
    #: get the same attributes.
    accepted: int | None = None
    future: BulkFuture | None = None

    def __init__(self, *args: object) -> None:
        # Not super(): the next class may belong to another client and change the text.
        Exception.__init__(self, *args)
        # A copy: another thread may remove a module at the same time.
        for module in tuple(_strangers):
            if module in sys.modules and adopt(KafkaError, module):
                with suppress(ValueError):
                    _strangers.remove(module)

    def __str__(self) -> str:
        name = type(self).__name__
        # Printable: the arguments may contain text from a broker, and the result becomes a log line.
        return printable(f"{name}: {', '.join(map(str, self.args))}") if self.args else name

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.args == getattr(other, "args", None)

    def __reduce__(self) -> str | tuple[Any, ...]:
        # A future is of use only in this process.
        state = {name: value for name, value in self.__dict__.items() if name != "future"}
        return type(self), self.args, state or None

    def __hash__(self) -> int:
        # The arguments may be unhashable, but an error must always fit into a set or a dict: the standard
        # library's traceback and context handling put errors there.
        return hash(type(self))


def copied(error: BaseException) -> BaseException:
    """Returns a copy of any exception, with its cause and without its traceback."""
    try:
        # copy uses pickle's protocol: OSError and UnicodeError keep their message in fields of their own.
        twin = copy.copy(error)
    except Exception:
        twin = type(error).__new__(type(error), *error.args)
    twin.args = error.args
    twin.__dict__.update(error.__dict__)
    twin.__cause__ = error.__cause__
    return twin


def told(error: BaseException, maybe_written: bool) -> BaseException:
    """Returns a copy of ``error`` with ``maybe_written``, for records: one cause may fail many batches."""
    twin = copied(error)
    twin.__dict__["maybe_written"] = maybe_written
    return twin


class RetriableError(KafkaError):
    """The failed operation may succeed on a retry."""

    retriable = True


class InvalidMetadataError(RetriableError):
    """The failed operation may succeed on a retry with fresh metadata."""

    invalid_metadata = True


class AbortableError(KafkaError):
    """The open transaction cannot be committed. Abort it, and this producer can begin the next (KIP-1050)."""


class ApplicationRecoverableError(KafkaError):
    """This transactional producer cannot continue. Close it and make a new one (KIP-1050)."""


class InvalidSetupError(KafkaError):
    """Rights, an option or a broker's version do not allow this; trying again will not help (KIP-1050)."""


class BrokerResponseError(KafkaError):
    """A broker responded with an error code.

    ``errno`` is the code, ``message`` its name (``'NOT_LEADER_FOR_PARTITION'``), ``description`` a sentence
    about it. A subclass with ``code=`` is the one that ``for_code`` returns for that code. Its ``message`` is
    the class's name in capitals (``NotLeaderForPartitionError`` makes the one above) unless ``message=`` is
    given.
    """

    errno: ClassVar[int | None] = None
    message: ClassVar[str | None] = None
    description: ClassVar[str | None] = None

    def __init_subclass__(cls, code: ErrorCode | None = None) -> None:
        if code is None:
            return
        if code in classes_by_code:
            raise TypeError(f"error code {code} already belongs to {classes_by_code[code].__name__}")
        cls.errno = int(code)
        cls.message = code.name
        cls.__doc__ = cls.description
        classes_by_code[cls.errno] = cls

    def __str__(self) -> str:
        if self.args or not self.description:
            return f"[Error {self.errno}] {super().__str__()}"
        return f"[Error {self.errno}] {type(self).__name__}: {self.description}"


class AuthorizationError(InvalidSetupError, BrokerResponseError):
    """The principal is not allowed to do this."""


classes_by_code: dict[int, type[BrokerResponseError]] = {}


def adopt_late_classes() -> None:
    """Gives classes that were made since other clients were imported their additional bases, too."""
    for module in MODULES:
        adopt(KafkaError, module)
