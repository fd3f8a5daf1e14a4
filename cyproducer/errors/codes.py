"""One class for each error code that a producer's requests may get; ``errors.other_codes`` has the others.

Owns its part of the table of codes: code, class, whether a retry or fresh metadata may help, description. A
class's ``errno`` is the ``code`` below, and its ``message`` the name of the code. Does not own the reaction
to an error (``control/``). Import the classes from ``errors``.

Codes and retriability are from the error table of the Kafka protocol guide. Class names are kafka-python's;
for codes that it does not know, they follow the protocol's names. A class is an ``InvalidMetadataError``
wherever kafka-python's is, which is also where Kafka's own client refreshes its metadata, and in one more
case (75: the broker that responded lags behind).
"""

from cyproducer.errors.base import (
    AbortableError,
    ApplicationRecoverableError,
    AuthorizationError,
    BrokerResponseError,
    InvalidMetadataError,
    InvalidSetupError,
    RetriableError,
)
from cyproducer.errors.error_code import ErrorCode as Code


class UnknownError(BrokerResponseError, code=Code.UNKNOWN):
    description = "The broker failed with an error that has no code; its log says why."


class NoError(BrokerResponseError, code=Code.NO_ERROR):
    description = "No error occurred."


class CorruptRecordError(RetriableError, BrokerResponseError, code=Code.CORRUPT_MESSAGE):
    description = "The batch arrived damaged (checksum, size), or has no key for a compacted topic."


class UnknownTopicOrPartitionError(
    InvalidMetadataError, BrokerResponseError, code=Code.UNKNOWN_TOPIC_OR_PARTITION
):
    description = "The broker hosts no such topic or partition; it may not have been created yet."


class LeaderNotAvailableError(InvalidMetadataError, BrokerResponseError, code=Code.LEADER_NOT_AVAILABLE):
    description = "The partition has no leader at present; an election is in progress."


class NotLeaderForPartitionError(
    InvalidMetadataError, BrokerResponseError, code=Code.NOT_LEADER_FOR_PARTITION
):
    description = "The broker that responded is not (or no longer) the leader of the partition."


class RequestTimedOutError(RetriableError, BrokerResponseError, code=Code.REQUEST_TIMED_OUT):
    description = "The broker could not finish the request within the time the request allowed."


class ReplicaNotAvailableError(InvalidMetadataError, BrokerResponseError, code=Code.REPLICA_NOT_AVAILABLE):
    description = "The broker that responded has no usable replica of the partition."


class MessageSizeTooLargeError(BrokerResponseError, code=Code.MESSAGE_SIZE_TOO_LARGE):
    description = (
        "The batch exceeds the topic's max.message.bytes or the broker's message.max.bytes: raise it there."
    )


class NetworkExceptionError(InvalidMetadataError, BrokerResponseError, code=Code.NETWORK_EXCEPTION):
    description = "The connection was lost before the response arrived."


class CoordinatorLoadInProgressError(
    RetriableError, BrokerResponseError, code=Code.COORDINATOR_LOAD_IN_PROGRESS
):
    description = "The coordinator is still loading its state; it will respond soon."


class CoordinatorNotAvailableError(RetriableError, BrokerResponseError, code=Code.COORDINATOR_NOT_AVAILABLE):
    description = "No coordinator is available at present."


class NotCoordinatorError(RetriableError, BrokerResponseError, code=Code.NOT_COORDINATOR):
    description = "The broker that responded is not the coordinator for this group or transactional id."


class InvalidTopicError(BrokerResponseError, ValueError, code=Code.INVALID_TOPIC):
    description = "The topic's name is illegal, or the topic is an internal one that clients may not touch."


class RecordListTooLargeError(BrokerResponseError, code=Code.RECORD_LIST_TOO_LARGE):
    description = "The batches together are larger than a log segment may be."


class NotEnoughReplicasError(RetriableError, BrokerResponseError, code=Code.NOT_ENOUGH_REPLICAS):
    description = "Fewer replicas are in sync than min.insync.replicas asks for; nothing was written."


class NotEnoughReplicasAfterAppendError(
    RetriableError, BrokerResponseError, code=Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND
):
    description = "The records were written, but fewer replicas than min.insync.replicas have them."


class InvalidRequiredAcksError(BrokerResponseError, code=Code.INVALID_REQUIRED_ACKS):
    description = "The acks of a produce request must be -1, 0 or 1."


class TopicAuthorizationFailedError(AuthorizationError, code=Code.TOPIC_AUTHORIZATION_FAILED):
    description = "The principal may not use this topic (Describe to see it, Write to produce to it)."


class GroupAuthorizationFailedError(AuthorizationError, code=Code.GROUP_AUTHORIZATION_FAILED):
    description = "The principal may not use this group."


class ClusterAuthorizationFailedError(AuthorizationError, code=Code.CLUSTER_AUTHORIZATION_FAILED):
    description = "The principal lacks a right on the cluster (IdempotentWrite, Create, or administration)."


class InvalidTimestampError(BrokerResponseError, code=Code.INVALID_TIMESTAMP):
    description = "The record's timestamp is outside the range that the topic accepts."


class UnsupportedSaslMechanismError(BrokerResponseError, code=Code.UNSUPPORTED_SASL_MECHANISM):
    description = "The broker does not offer the SASL mechanism that was asked for."


class IllegalSaslStateError(BrokerResponseError, code=Code.ILLEGAL_SASL_STATE):
    description = "The request does not fit the state of the SASL exchange."


class UnsupportedVersionError(InvalidSetupError, BrokerResponseError, code=Code.UNSUPPORTED_VERSION):
    description = "The broker does not support this version of the request."


class InvalidRequestError(BrokerResponseError, code=Code.INVALID_REQUEST):
    description = "The broker rejected the request as malformed; its log says why."


class UnsupportedForMessageFormatError(BrokerResponseError, code=Code.UNSUPPORTED_FOR_MESSAGE_FORMAT):
    description = (
        "The topic's message format is too old for this request: set message.format.version of the topic, or "
        "log.message.format.version of its brokers, to 0.11.0 or later."
    )


class OutOfOrderSequenceNumberError(BrokerResponseError, code=Code.OUT_OF_ORDER_SEQUENCE_NUMBER):
    description = "The batch's sequence number leaves a gap after this producer's last one on the broker."


class DuplicateSequenceNumberError(BrokerResponseError, code=Code.DUPLICATE_SEQUENCE_NUMBER):
    description = "The broker already has a batch with this sequence number."


class InvalidProducerEpochError(
    ApplicationRecoverableError, BrokerResponseError, code=Code.INVALID_PRODUCER_EPOCH
):
    description = "The producer's epoch is older than the one the broker knows."


class InvalidTxnStateError(BrokerResponseError, code=Code.INVALID_TXN_STATE):
    description = "The transaction is not in a state that allows this operation."


class InvalidProducerIdMappingError(
    ApplicationRecoverableError, BrokerResponseError, code=Code.INVALID_PRODUCER_ID_MAPPING
):
    description = "The producer id does not belong to the transactional id."


class InvalidTransactionTimeoutError(
    InvalidSetupError, BrokerResponseError, code=Code.INVALID_TRANSACTION_TIMEOUT
):
    description = "The transaction timeout exceeds the broker's transaction.max.timeout.ms."


class ConcurrentTransactionsError(RetriableError, BrokerResponseError, code=Code.CONCURRENT_TRANSACTIONS):
    description = "The previous operation on the same transaction is not finished yet."


class TransactionCoordinatorFencedError(BrokerResponseError, code=Code.TRANSACTION_COORDINATOR_FENCED):
    description = "Another broker has taken over as coordinator of this transaction."


class TransactionalIdAuthorizationFailedError(
    AuthorizationError, code=Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
):
    description = "The principal may not use this transactional id."


class OperationNotAttemptedError(BrokerResponseError, code=Code.OPERATION_NOT_ATTEMPTED):
    description = "The broker did not attempt this part of the request because another part failed."


class KafkaStorageError(InvalidMetadataError, BrokerResponseError, code=Code.KAFKA_STORAGE_ERROR):
    description = "The broker's disk failed; another replica takes over."


class SaslAuthenticationFailedError(BrokerResponseError, code=Code.SASL_AUTHENTICATION_FAILED):
    description = "The broker did not accept the credentials."


class UnknownProducerIdError(BrokerResponseError, code=Code.UNKNOWN_PRODUCER_ID):
    description = "The broker has forgotten this producer, for example because all its records were deleted."


class FencedLeaderEpochError(InvalidMetadataError, BrokerResponseError, code=Code.FENCED_LEADER_EPOCH):
    description = "The client's leader epoch is older than the broker's."


class UnknownLeaderEpochError(InvalidMetadataError, BrokerResponseError, code=Code.UNKNOWN_LEADER_EPOCH):
    description = "The client's leader epoch is newer than the broker's, which lags behind."


class UnsupportedCompressionTypeError(BrokerResponseError, code=Code.UNSUPPORTED_COMPRESSION_TYPE):
    description = (
        "The brokers do not take this compression type: zstd needs Kafka 2.1 or later, and "
        "inter.broker.protocol.version=2.1 or later on all brokers."
    )


class InvalidRecordError(BrokerResponseError, code=Code.INVALID_RECORD):
    description = "The broker refused a record of the batch."


class ProducerFencedError(ApplicationRecoverableError, BrokerResponseError, code=Code.PRODUCER_FENCED):
    description = "A newer producer with the same transactional id has taken over."


class UnknownTopicIdError(InvalidMetadataError, BrokerResponseError, code=Code.UNKNOWN_TOPIC_ID):
    description = "The broker hosts no topic with this id; it may have been deleted and created again."


class InconsistentTopicIdError(InvalidMetadataError, BrokerResponseError, code=Code.INCONSISTENT_TOPIC_ID):
    description = "The log belongs to another incarnation of the topic."


class TransactionAbortableError(AbortableError, BrokerResponseError, code=Code.TRANSACTION_ABORTABLE):
    description = "The transaction must be aborted; the transactional id can be used again afterwards."


class RebootstrapRequiredError(BrokerResponseError, code=Code.REBOOTSTRAP_REQUIRED):
    description = "The client's metadata is out of date; it must start again from its bootstrap servers."
