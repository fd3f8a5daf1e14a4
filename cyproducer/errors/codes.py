"""One class for each error code of the Kafka protocol, from -1 to 133 (Kafka 4.1).

Owns the table of codes: code, class, whether a retry or fresh metadata may help, description. A class's
``errno`` is the ``code`` below; its ``message`` is the class's name in capitals unless given. Does not own
the reaction to an error (``control/``). Import the classes from ``errors``.

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


class UnknownError(BrokerResponseError, code=-1):
    description = "The broker failed with an error that has no code; its log says why."


class NoError(BrokerResponseError, code=0, message="NO_ERROR"):
    description = "No error occurred."


class OffsetOutOfRangeError(BrokerResponseError, code=1):
    description = "The partition holds no record at the offset asked for."


class CorruptRecordError(RetriableError, BrokerResponseError, code=2, message="CORRUPT_MESSAGE"):
    description = "The batch arrived damaged (checksum, size), or has no key for a compacted topic."


class UnknownTopicOrPartitionError(InvalidMetadataError, BrokerResponseError, code=3):
    description = "The broker hosts no such topic or partition; it may not have been created yet."


class InvalidFetchRequestError(BrokerResponseError, code=4, message="INVALID_FETCH_SIZE"):
    description = "The size given in a fetch request is not acceptable."


class LeaderNotAvailableError(InvalidMetadataError, BrokerResponseError, code=5):
    description = "The partition has no leader at present; an election is in progress."


class NotLeaderForPartitionError(InvalidMetadataError, BrokerResponseError, code=6):
    description = "The broker that responded is not (or no longer) the leader of the partition."


class RequestTimedOutError(RetriableError, BrokerResponseError, code=7):
    description = "The broker could not finish the request within the time the request allowed."


class BrokerNotAvailableError(BrokerResponseError, code=8):
    description = "The broker is not up."


class ReplicaNotAvailableError(InvalidMetadataError, BrokerResponseError, code=9):
    description = "The broker that responded has no usable replica of the partition."


class MessageSizeTooLargeError(BrokerResponseError, code=10):
    description = (
        "The batch exceeds the topic's max.message.bytes or the broker's message.max.bytes: raise it there."
    )


class StaleControllerEpochError(BrokerResponseError, code=11):
    description = "The controller has a newer epoch."


class OffsetMetadataTooLargeError(BrokerResponseError, code=12):
    description = "The metadata string that goes with a committed offset is too long."


class NetworkExceptionError(InvalidMetadataError, BrokerResponseError, code=13):
    description = "The connection was lost before the response arrived."


class CoordinatorLoadInProgressError(RetriableError, BrokerResponseError, code=14):
    description = "The coordinator is still loading its state; it will respond soon."


class CoordinatorNotAvailableError(RetriableError, BrokerResponseError, code=15):
    description = "No coordinator is available at present."


class NotCoordinatorError(RetriableError, BrokerResponseError, code=16):
    description = "The broker that responded is not the coordinator for this group or transactional id."


class InvalidTopicError(BrokerResponseError, ValueError, code=17):
    description = "The topic's name is illegal, or the topic is an internal one that clients may not touch."


class RecordListTooLargeError(BrokerResponseError, code=18):
    description = "The batches together are larger than a log segment may be."


class NotEnoughReplicasError(RetriableError, BrokerResponseError, code=19):
    description = "Fewer replicas are in sync than min.insync.replicas asks for; nothing was written."


class NotEnoughReplicasAfterAppendError(RetriableError, BrokerResponseError, code=20):
    description = "The records were written, but fewer replicas than min.insync.replicas have them."


class InvalidRequiredAcksError(BrokerResponseError, code=21):
    description = "The acks of a produce request must be -1, 0 or 1."


class IllegalGenerationError(BrokerResponseError, code=22):
    description = "The group has a newer generation."


class InconsistentGroupProtocolError(BrokerResponseError, code=23):
    description = "The member shares no protocol with the other members of its group."


class InvalidGroupIdError(BrokerResponseError, code=24):
    description = "The group id is empty or illegal."


class UnknownMemberIdError(BrokerResponseError, code=25):
    description = "The group has no such member."


class InvalidSessionTimeoutError(BrokerResponseError, code=26):
    description = "The session timeout is outside the limits that the broker sets."


class RebalanceInProgressError(BrokerResponseError, code=27):
    description = "The group is being rebalanced; the member must join again."


class InvalidCommitOffsetSizeError(BrokerResponseError, code=28):
    description = "The offsets to commit are larger than the broker allows."


class TopicAuthorizationFailedError(AuthorizationError, code=29):
    description = "The principal may not use this topic (Describe to see it, Write to produce to it)."


class GroupAuthorizationFailedError(AuthorizationError, code=30):
    description = "The principal may not use this group."


class ClusterAuthorizationFailedError(AuthorizationError, code=31):
    description = "The principal lacks a right on the cluster (IdempotentWrite, Create, or administration)."


class InvalidTimestampError(BrokerResponseError, code=32):
    description = "The record's timestamp is outside the range that the topic accepts."


class UnsupportedSaslMechanismError(BrokerResponseError, code=33):
    description = "The broker does not offer the SASL mechanism that was asked for."


class IllegalSaslStateError(BrokerResponseError, code=34):
    description = "The request does not fit the state of the SASL exchange."


class UnsupportedVersionError(InvalidSetupError, BrokerResponseError, code=35):
    description = "The broker does not support this version of the request."


class TopicAlreadyExistsError(BrokerResponseError, code=36):
    description = "A topic with this name already exists."


class InvalidPartitionsError(BrokerResponseError, code=37):
    description = "The number of partitions must be 1 or more."


class InvalidReplicationFactorError(BrokerResponseError, code=38):
    description = "The replication factor is below 1 or above the number of brokers."


class InvalidReplicationAssignmentError(BrokerResponseError, code=39):
    description = "The replica assignment is not usable."


class InvalidConfigurationError(BrokerResponseError, code=40, message="INVALID_CONFIG"):
    description = "A configuration value is not acceptable."


class NotControllerError(RetriableError, BrokerResponseError, code=41):
    description = "The broker that responded is not the controller."


class InvalidRequestError(BrokerResponseError, code=42):
    description = "The broker rejected the request as malformed; its log says why."


class UnsupportedForMessageFormatError(BrokerResponseError, code=43):
    description = (
        "The topic's message format is too old for this request: set message.format.version of the topic, or "
        "log.message.format.version of its brokers, to 0.11.0 or later."
    )


class PolicyViolationError(BrokerResponseError, code=44):
    description = "A policy that the broker's owner set forbids this."


class OutOfOrderSequenceNumberError(BrokerResponseError, code=45):
    description = "The batch's sequence number leaves a gap after this producer's last one on the broker."


class DuplicateSequenceNumberError(BrokerResponseError, code=46):
    description = "The broker already has a batch with this sequence number."


class InvalidProducerEpochError(ApplicationRecoverableError, BrokerResponseError, code=47):
    description = "The producer's epoch is older than the one the broker knows."


class InvalidTxnStateError(BrokerResponseError, code=48):
    description = "The transaction is not in a state that allows this operation."


class InvalidProducerIdMappingError(ApplicationRecoverableError, BrokerResponseError, code=49):
    description = "The producer id does not belong to the transactional id."


class InvalidTransactionTimeoutError(InvalidSetupError, BrokerResponseError, code=50):
    description = "The transaction timeout exceeds the broker's transaction.max.timeout.ms."


class ConcurrentTransactionsError(RetriableError, BrokerResponseError, code=51):
    description = "The previous operation on the same transaction is not finished yet."


class TransactionCoordinatorFencedError(BrokerResponseError, code=52):
    description = "Another broker has taken over as coordinator of this transaction."


class TransactionalIdAuthorizationFailedError(AuthorizationError, code=53):
    description = "The principal may not use this transactional id."


class SecurityDisabledError(BrokerResponseError, code=54):
    description = "The broker has no authorizer, so it keeps no access rules."


class OperationNotAttemptedError(BrokerResponseError, code=55):
    description = "The broker did not attempt this part of the request because another part failed."


class KafkaStorageError(InvalidMetadataError, BrokerResponseError, code=56, message="KAFKA_STORAGE_ERROR"):
    description = "The broker's disk failed; another replica takes over."


class LogDirNotFoundError(BrokerResponseError, code=57):
    description = "The broker has no such log directory."


class SaslAuthenticationFailedError(BrokerResponseError, code=58):
    description = "The broker did not accept the credentials."


class UnknownProducerIdError(BrokerResponseError, code=59):
    description = "The broker has forgotten this producer, for example because all its records were deleted."


class ReassignmentInProgressError(BrokerResponseError, code=60):
    description = "The partition is already being moved."


class DelegationTokenAuthDisabledError(BrokerResponseError, code=61):
    description = "The broker has delegation tokens switched off."


class DelegationTokenNotFoundError(BrokerResponseError, code=62):
    description = "The broker has no such delegation token."


class DelegationTokenOwnerMismatchError(BrokerResponseError, code=63):
    description = "The principal is neither the token's owner nor one of its renewers."


class DelegationTokenRequestNotAllowedError(BrokerResponseError, code=64):
    description = "Delegation tokens can't be requested over a connection of this kind."


class DelegationTokenAuthorizationFailedError(AuthorizationError, code=65):
    description = "The principal may not use this delegation token."


class DelegationTokenExpiredError(BrokerResponseError, code=66):
    description = "The delegation token has expired."


class InvalidPrincipalTypeError(BrokerResponseError, code=67):
    description = "The broker does not support principals of this type."


class NonEmptyGroupError(BrokerResponseError, code=68):
    description = "The group still has members."


class GroupIdNotFoundError(BrokerResponseError, code=69):
    description = "There is no such group."


class FetchSessionIdNotFoundError(RetriableError, BrokerResponseError, code=70):
    description = "The broker has dropped the fetch session."


class InvalidFetchSessionEpochError(RetriableError, BrokerResponseError, code=71):
    description = "The fetch session has a different epoch."


class ListenerNotFoundError(InvalidMetadataError, BrokerResponseError, code=72):
    description = "The leader has no listener of the name this connection uses."


class TopicDeletionDisabledError(BrokerResponseError, code=73):
    description = "The broker has the deletion of topics switched off."


class FencedLeaderEpochError(InvalidMetadataError, BrokerResponseError, code=74):
    description = "The client's leader epoch is older than the broker's."


class UnknownLeaderEpochError(InvalidMetadataError, BrokerResponseError, code=75):
    description = "The client's leader epoch is newer than the broker's, which lags behind."


class UnsupportedCompressionTypeError(BrokerResponseError, code=76):
    description = (
        "The brokers do not take this compression type: zstd needs Kafka 2.1 or later, and "
        "inter.broker.protocol.version=2.1 or later on all brokers."
    )


class StaleBrokerEpochError(BrokerResponseError, code=77):
    description = "The broker has registered again since then."


class OffsetNotAvailableError(RetriableError, BrokerResponseError, code=78):
    description = "The new leader can't report offsets yet."


class MemberIdRequiredError(BrokerResponseError, code=79):
    description = "The member must join again with the id it was just given."


class PreferredLeaderNotAvailableError(InvalidMetadataError, BrokerResponseError, code=80):
    description = "The preferred leader is not up."


class GroupMaxSizeReachedError(BrokerResponseError, code=81):
    description = "The group is full."


class FencedInstanceIdError(BrokerResponseError, code=82):
    description = "Another member has taken over this group.instance.id."


class EligibleLeadersNotAvailableError(InvalidMetadataError, BrokerResponseError, code=83):
    description = "None of the replicas may become the leader."


class ElectionNotNeededError(InvalidMetadataError, BrokerResponseError, code=84):
    description = "The partition has the leader it should have."


class NoReassignmentInProgressError(BrokerResponseError, code=85):
    description = "The partition is not being moved."


class GroupSubscribedToTopicError(BrokerResponseError, code=86):
    description = "The group is subscribed to the topic."


class InvalidRecordError(BrokerResponseError, code=87):
    description = "The broker refused a record of the batch."


class UnstableOffsetCommitError(RetriableError, BrokerResponseError, code=88):
    description = "An open transaction holds back the offset."


class ThrottlingQuotaExceededError(RetriableError, BrokerResponseError, code=89):
    description = "The quota is used up; wait as long as the broker asks."


class ProducerFencedError(ApplicationRecoverableError, BrokerResponseError, code=90):
    description = "A newer producer with the same transactional id has taken over."


class ResourceNotFoundError(BrokerResponseError, code=91):
    description = "The request names something that does not exist."


class DuplicateResourceError(BrokerResponseError, code=92):
    description = "The request names the same thing twice."


class UnacceptableCredentialError(BrokerResponseError, code=93):
    description = "The credential is not good enough for the broker's rules."


class InconsistentVoterSetError(BrokerResponseError, code=94):
    description = "The sender or the receiver is not one of the voters."


class InvalidUpdateVersionError(BrokerResponseError, code=95):
    description = "The version to update to is not acceptable."


class FeatureUpdateFailedError(BrokerResponseError, code=96):
    description = "The broker failed to update the features."


class PrincipalDeserializationFailureError(BrokerResponseError, code=97):
    description = "The controller could not read the principal a broker forwarded."


class SnapshotNotFoundError(BrokerResponseError, code=98):
    description = "There is no such snapshot."


class PositionOutOfRangeError(BrokerResponseError, code=99):
    description = "The position is outside the snapshot."


class UnknownTopicIdError(InvalidMetadataError, BrokerResponseError, code=100):
    description = "The broker hosts no topic with this id; it may have been deleted and created again."


class DuplicateBrokerRegistrationError(BrokerResponseError, code=101):
    description = "Another broker is registered with this id."


class BrokerIdNotRegisteredError(BrokerResponseError, code=102):
    description = "No broker is registered with this id."


class InconsistentTopicIdError(InvalidMetadataError, BrokerResponseError, code=103):
    description = "The log belongs to another incarnation of the topic."


class InconsistentClusterIdError(BrokerResponseError, code=104):
    description = "The request is meant for another cluster."


class TransactionalIdNotFoundError(BrokerResponseError, code=105):
    description = "There is no such transactional id."


class FetchSessionTopicIdError(
    RetriableError, BrokerResponseError, code=106, message="FETCH_SESSION_TOPIC_ID_ERROR"
):
    description = "The fetch session mixes requests with and without topic ids."


class IneligibleReplicaError(BrokerResponseError, code=107):
    description = "A replica that is not eligible was named as in sync."


class NewLeaderElectedError(BrokerResponseError, code=108):
    description = "The partition was changed as requested, and the change elected another leader."


class OffsetMovedToTieredStorageError(BrokerResponseError, code=109):
    description = "The offset is only in tiered storage."


class FencedMemberEpochError(BrokerResponseError, code=110):
    description = "The coordinator has fenced the member; it must give up its partitions and join again."


class UnreleasedInstanceIdError(BrokerResponseError, code=111):
    description = "Another member still holds this group.instance.id."


class UnsupportedAssignorError(BrokerResponseError, code=112):
    description = "The coordinator does not know this assignor or its version."


class StaleMemberEpochError(BrokerResponseError, code=113):
    description = "The member must fetch its new epoch with a heartbeat first."


class MismatchedEndpointTypeError(BrokerResponseError, code=114):
    description = "The broker got a request that only a controller answers, or the reverse."


class UnsupportedEndpointTypeError(BrokerResponseError, code=115):
    description = "Endpoints of this type are not supported."


class UnknownControllerIdError(BrokerResponseError, code=116):
    description = "There is no controller with this id."


class UnknownSubscriptionIdError(BrokerResponseError, code=117):
    description = "The telemetry subscription has changed."


class TelemetryTooLargeError(BrokerResponseError, code=118):
    description = "The pushed telemetry is larger than the broker accepts."


class InvalidRegistrationError(BrokerResponseError, code=119):
    description = "The controller refused the broker's registration."


class TransactionAbortableError(AbortableError, BrokerResponseError, code=120):
    description = "The transaction must be aborted; the transactional id can be used again afterwards."


class InvalidRecordStateError(BrokerResponseError, code=121):
    description = "The record is not in a state that allows its acknowledgement."


class ShareSessionNotFoundError(RetriableError, BrokerResponseError, code=122):
    description = "The broker has dropped the share session."


class InvalidShareSessionEpochError(RetriableError, BrokerResponseError, code=123):
    description = "The share session has a different epoch."


class FencedStateEpochError(BrokerResponseError, code=124):
    description = "The share group's state has a newer epoch."


class InvalidVoterKeyError(BrokerResponseError, code=125):
    description = "The voter's key differs from that of the replica."


class DuplicateVoterError(BrokerResponseError, code=126):
    description = "A voter with this id already exists."


class VoterNotFoundError(BrokerResponseError, code=127):
    description = "There is no voter with this id."


class InvalidRegularExpressionError(BrokerResponseError, code=128):
    description = "The regular expression can't be parsed."


class RebootstrapRequiredError(BrokerResponseError, code=129):
    description = "The client's metadata is out of date; it must start again from its bootstrap servers."


class StreamsInvalidTopologyError(BrokerResponseError, code=130):
    description = "The streams topology is not usable."


class StreamsInvalidTopologyEpochError(BrokerResponseError, code=131):
    description = "The epoch of the streams topology is not usable."


class StreamsTopologyFencedError(BrokerResponseError, code=132):
    description = "The epoch of the streams topology is older than the group's."


class ShareSessionLimitReachedError(RetriableError, BrokerResponseError, code=133):
    description = "The broker has reached its limit of share sessions."
