"""The exceptions of ``cyproducer.errors``, also under aiokafka's names, for those that a producer can raise.

An ``except aiokafka.errors.X`` that is left in a program also catches these: see ``errors/other_clients``.
The names of exceptions that only a consumer raises are missing here.
"""

# The star re-exports 140 names without a second list of them. mypy checks what ruff then can't.
# ruff: noqa: F403, F405

from cyproducer.errors import *

ProducerClosed = ProducerClosedError
ProducerFenced = ProducerFencedError
#: A transaction method, or ``send()``, was called at the wrong time or without a ``transactional_id``.
IllegalOperation = IllegalStateError

# The brokers' error codes, in the order of the codes.
InvalidMessageError = CorruptRecordError
StaleLeaderEpochCodeError = NetworkExceptionError
GroupLoadInProgressError = CoordinatorLoadInProgressError
GroupCoordinatorNotAvailableError = CoordinatorNotAvailableError
NotCoordinatorForGroupError = NotCoordinatorError
OutOfOrderSequenceNumber = OutOfOrderSequenceNumberError
DuplicateSequenceNumber = DuplicateSequenceNumberError
InvalidProducerEpoch = InvalidProducerEpochError
InvalidTxnState = InvalidTxnStateError
InvalidProducerIdMapping = InvalidProducerIdMappingError
InvalidTransactionTimeout = InvalidTransactionTimeoutError
ConcurrentTransactions = ConcurrentTransactionsError
TransactionCoordinatorFenced = TransactionCoordinatorFencedError
TransactionalIdAuthorizationFailed = TransactionalIdAuthorizationFailedError
SecurityDisabled = SecurityDisabledError
OperationNotAttempted = OperationNotAttemptedError
LogDirNotFound = LogDirNotFoundError
SaslAuthenticationFailed = SaslAuthenticationFailedError
UnknownProducerId = UnknownProducerIdError
ReassignmentInProgress = ReassignmentInProgressError
DelegationTokenAuthDisabled = DelegationTokenAuthDisabledError
DelegationTokenNotFound = DelegationTokenNotFoundError
DelegationTokenOwnerMismatch = DelegationTokenOwnerMismatchError
DelegationTokenRequestNotAllowed = DelegationTokenRequestNotAllowedError
DelegationTokenAuthorizationFailed = DelegationTokenAuthorizationFailedError
DelegationTokenExpired = DelegationTokenExpiredError
InvalidPrincipalType = InvalidPrincipalTypeError
NonEmptyGroup = NonEmptyGroupError
GroupIdNotFound = GroupIdNotFoundError
FetchSessionIdNotFound = FetchSessionIdNotFoundError
InvalidFetchSessionEpoch = InvalidFetchSessionEpochError
ListenerNotFound = ListenerNotFoundError
MemberIdRequired = MemberIdRequiredError
