"""One class for each error code that a producer's requests do not get; see ``errors.codes``.

Consumers, administrators and brokers get them. Import the classes from ``errors``, which imports this module
once one of them is used: making them would be a twentieth of the package's import time.
"""

from cyproducer.errors.base import (
    AuthorizationError,
    BrokerResponseError,
    InvalidMetadataError,
    RetriableError,
    adopt_late_classes,
)
from cyproducer.errors.error_code import ErrorCode as Code


class OffsetOutOfRangeError(BrokerResponseError, code=Code.OFFSET_OUT_OF_RANGE):
    description = "The partition holds no record at the offset asked for."


class InvalidFetchRequestError(BrokerResponseError, code=Code.INVALID_FETCH_SIZE):
    description = "The size given in a fetch request is not acceptable."


class BrokerNotAvailableError(BrokerResponseError, code=Code.BROKER_NOT_AVAILABLE):
    description = "The broker is not up."


class StaleControllerEpochError(BrokerResponseError, code=Code.STALE_CONTROLLER_EPOCH):
    description = "The controller has a newer epoch."


class OffsetMetadataTooLargeError(BrokerResponseError, code=Code.OFFSET_METADATA_TOO_LARGE):
    description = "The metadata string that goes with a committed offset is too long."


class IllegalGenerationError(BrokerResponseError, code=Code.ILLEGAL_GENERATION):
    description = "The group has a newer generation."


class InconsistentGroupProtocolError(BrokerResponseError, code=Code.INCONSISTENT_GROUP_PROTOCOL):
    description = "The member shares no protocol with the other members of its group."


class InvalidGroupIdError(BrokerResponseError, code=Code.INVALID_GROUP_ID):
    description = "The group id is empty or illegal."


class UnknownMemberIdError(BrokerResponseError, code=Code.UNKNOWN_MEMBER_ID):
    description = "The group has no such member."


class InvalidSessionTimeoutError(BrokerResponseError, code=Code.INVALID_SESSION_TIMEOUT):
    description = "The session timeout is outside the limits that the broker sets."


class RebalanceInProgressError(BrokerResponseError, code=Code.REBALANCE_IN_PROGRESS):
    description = "The group is being rebalanced; the member must join again."


class InvalidCommitOffsetSizeError(BrokerResponseError, code=Code.INVALID_COMMIT_OFFSET_SIZE):
    description = "The offsets to commit are larger than the broker allows."


class TopicAlreadyExistsError(BrokerResponseError, code=Code.TOPIC_ALREADY_EXISTS):
    description = "A topic with this name already exists."


class InvalidPartitionsError(BrokerResponseError, code=Code.INVALID_PARTITIONS):
    description = "The number of partitions must be 1 or more."


class InvalidReplicationFactorError(BrokerResponseError, code=Code.INVALID_REPLICATION_FACTOR):
    description = "The replication factor is below 1 or above the number of brokers."


class InvalidReplicationAssignmentError(BrokerResponseError, code=Code.INVALID_REPLICATION_ASSIGNMENT):
    description = "The replica assignment is not usable."


class InvalidConfigurationError(BrokerResponseError, code=Code.INVALID_CONFIG):
    description = "A configuration value is not acceptable."


class NotControllerError(RetriableError, BrokerResponseError, code=Code.NOT_CONTROLLER):
    description = "The broker that responded is not the controller."


class PolicyViolationError(BrokerResponseError, code=Code.POLICY_VIOLATION):
    description = "A policy that the broker's owner set forbids this."


class SecurityDisabledError(BrokerResponseError, code=Code.SECURITY_DISABLED):
    description = "The broker has no authorizer, so it keeps no access rules."


class LogDirNotFoundError(BrokerResponseError, code=Code.LOG_DIR_NOT_FOUND):
    description = "The broker has no such log directory."


class ReassignmentInProgressError(BrokerResponseError, code=Code.REASSIGNMENT_IN_PROGRESS):
    description = "The partition is already being moved."


class DelegationTokenAuthDisabledError(BrokerResponseError, code=Code.DELEGATION_TOKEN_AUTH_DISABLED):
    description = "The broker has delegation tokens switched off."


class DelegationTokenNotFoundError(BrokerResponseError, code=Code.DELEGATION_TOKEN_NOT_FOUND):
    description = "The broker has no such delegation token."


class DelegationTokenOwnerMismatchError(BrokerResponseError, code=Code.DELEGATION_TOKEN_OWNER_MISMATCH):
    description = "The principal is neither the token's owner nor one of its renewers."


class DelegationTokenRequestNotAllowedError(
    BrokerResponseError, code=Code.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
):
    description = "Delegation tokens can't be requested over a connection of this kind."


class DelegationTokenAuthorizationFailedError(
    AuthorizationError, code=Code.DELEGATION_TOKEN_AUTHORIZATION_FAILED
):
    description = "The principal may not use this delegation token."


class DelegationTokenExpiredError(BrokerResponseError, code=Code.DELEGATION_TOKEN_EXPIRED):
    description = "The delegation token has expired."


class InvalidPrincipalTypeError(BrokerResponseError, code=Code.INVALID_PRINCIPAL_TYPE):
    description = "The broker does not support principals of this type."


class NonEmptyGroupError(BrokerResponseError, code=Code.NON_EMPTY_GROUP):
    description = "The group still has members."


class GroupIdNotFoundError(BrokerResponseError, code=Code.GROUP_ID_NOT_FOUND):
    description = "There is no such group."


class FetchSessionIdNotFoundError(RetriableError, BrokerResponseError, code=Code.FETCH_SESSION_ID_NOT_FOUND):
    description = "The broker has dropped the fetch session."


class InvalidFetchSessionEpochError(
    RetriableError, BrokerResponseError, code=Code.INVALID_FETCH_SESSION_EPOCH
):
    description = "The fetch session has a different epoch."


class ListenerNotFoundError(InvalidMetadataError, BrokerResponseError, code=Code.LISTENER_NOT_FOUND):
    description = "The leader has no listener of the name this connection uses."


class TopicDeletionDisabledError(BrokerResponseError, code=Code.TOPIC_DELETION_DISABLED):
    description = "The broker has the deletion of topics switched off."


class StaleBrokerEpochError(BrokerResponseError, code=Code.STALE_BROKER_EPOCH):
    description = "The broker has registered again since then."


class OffsetNotAvailableError(RetriableError, BrokerResponseError, code=Code.OFFSET_NOT_AVAILABLE):
    description = "The new leader can't report offsets yet."


class MemberIdRequiredError(BrokerResponseError, code=Code.MEMBER_ID_REQUIRED):
    description = "The member must join again with the id it was just given."


class PreferredLeaderNotAvailableError(
    InvalidMetadataError, BrokerResponseError, code=Code.PREFERRED_LEADER_NOT_AVAILABLE
):
    description = "The preferred leader is not up."


class GroupMaxSizeReachedError(BrokerResponseError, code=Code.GROUP_MAX_SIZE_REACHED):
    description = "The group is full."


class FencedInstanceIdError(BrokerResponseError, code=Code.FENCED_INSTANCE_ID):
    description = "Another member has taken over this group.instance.id."


class EligibleLeadersNotAvailableError(
    InvalidMetadataError, BrokerResponseError, code=Code.ELIGIBLE_LEADERS_NOT_AVAILABLE
):
    description = "None of the replicas may become the leader."


class ElectionNotNeededError(InvalidMetadataError, BrokerResponseError, code=Code.ELECTION_NOT_NEEDED):
    description = "The partition has the leader it should have."


class NoReassignmentInProgressError(BrokerResponseError, code=Code.NO_REASSIGNMENT_IN_PROGRESS):
    description = "The partition is not being moved."


class GroupSubscribedToTopicError(BrokerResponseError, code=Code.GROUP_SUBSCRIBED_TO_TOPIC):
    description = "The group is subscribed to the topic."


class UnstableOffsetCommitError(RetriableError, BrokerResponseError, code=Code.UNSTABLE_OFFSET_COMMIT):
    description = "An open transaction holds back the offset."


class ThrottlingQuotaExceededError(RetriableError, BrokerResponseError, code=Code.THROTTLING_QUOTA_EXCEEDED):
    description = "The quota is used up; wait as long as the broker asks."


class ResourceNotFoundError(BrokerResponseError, code=Code.RESOURCE_NOT_FOUND):
    description = "The request names something that does not exist."


class DuplicateResourceError(BrokerResponseError, code=Code.DUPLICATE_RESOURCE):
    description = "The request names the same thing twice."


class UnacceptableCredentialError(BrokerResponseError, code=Code.UNACCEPTABLE_CREDENTIAL):
    description = "The credential is not good enough for the broker's rules."


class InconsistentVoterSetError(BrokerResponseError, code=Code.INCONSISTENT_VOTER_SET):
    description = "The sender or the receiver is not one of the voters."


class InvalidUpdateVersionError(BrokerResponseError, code=Code.INVALID_UPDATE_VERSION):
    description = "The version to update to is not acceptable."


class FeatureUpdateFailedError(BrokerResponseError, code=Code.FEATURE_UPDATE_FAILED):
    description = "The broker failed to update the features."


class PrincipalDeserializationFailureError(BrokerResponseError, code=Code.PRINCIPAL_DESERIALIZATION_FAILURE):
    description = "The controller could not read the principal a broker forwarded."


class SnapshotNotFoundError(BrokerResponseError, code=Code.SNAPSHOT_NOT_FOUND):
    description = "There is no such snapshot."


class PositionOutOfRangeError(BrokerResponseError, code=Code.POSITION_OUT_OF_RANGE):
    description = "The position is outside the snapshot."


class DuplicateBrokerRegistrationError(BrokerResponseError, code=Code.DUPLICATE_BROKER_REGISTRATION):
    description = "Another broker is registered with this id."


class BrokerIdNotRegisteredError(BrokerResponseError, code=Code.BROKER_ID_NOT_REGISTERED):
    description = "No broker is registered with this id."


class InconsistentClusterIdError(BrokerResponseError, code=Code.INCONSISTENT_CLUSTER_ID):
    description = "The request is meant for another cluster."


class TransactionalIdNotFoundError(BrokerResponseError, code=Code.TRANSACTIONAL_ID_NOT_FOUND):
    description = "There is no such transactional id."


class FetchSessionTopicIdError(RetriableError, BrokerResponseError, code=Code.FETCH_SESSION_TOPIC_ID_ERROR):
    description = "The fetch session mixes requests with and without topic ids."


class IneligibleReplicaError(BrokerResponseError, code=Code.INELIGIBLE_REPLICA):
    description = "A replica that is not eligible was named as in sync."


class NewLeaderElectedError(BrokerResponseError, code=Code.NEW_LEADER_ELECTED):
    description = "The partition was changed as requested, and the change elected another leader."


class OffsetMovedToTieredStorageError(BrokerResponseError, code=Code.OFFSET_MOVED_TO_TIERED_STORAGE):
    description = "The offset is only in tiered storage."


class FencedMemberEpochError(BrokerResponseError, code=Code.FENCED_MEMBER_EPOCH):
    description = "The coordinator has fenced the member; it must give up its partitions and join again."


class UnreleasedInstanceIdError(BrokerResponseError, code=Code.UNRELEASED_INSTANCE_ID):
    description = "Another member still holds this group.instance.id."


class UnsupportedAssignorError(BrokerResponseError, code=Code.UNSUPPORTED_ASSIGNOR):
    description = "The coordinator does not know this assignor or its version."


class StaleMemberEpochError(BrokerResponseError, code=Code.STALE_MEMBER_EPOCH):
    description = "The member must fetch its new epoch with a heartbeat first."


class MismatchedEndpointTypeError(BrokerResponseError, code=Code.MISMATCHED_ENDPOINT_TYPE):
    description = "The broker got a request that only a controller answers, or the reverse."


class UnsupportedEndpointTypeError(BrokerResponseError, code=Code.UNSUPPORTED_ENDPOINT_TYPE):
    description = "Endpoints of this type are not supported."


class UnknownControllerIdError(BrokerResponseError, code=Code.UNKNOWN_CONTROLLER_ID):
    description = "There is no controller with this id."


class UnknownSubscriptionIdError(BrokerResponseError, code=Code.UNKNOWN_SUBSCRIPTION_ID):
    description = "The telemetry subscription has changed."


class TelemetryTooLargeError(BrokerResponseError, code=Code.TELEMETRY_TOO_LARGE):
    description = "The pushed telemetry is larger than the broker accepts."


class InvalidRegistrationError(BrokerResponseError, code=Code.INVALID_REGISTRATION):
    description = "The controller refused the broker's registration."


class InvalidRecordStateError(BrokerResponseError, code=Code.INVALID_RECORD_STATE):
    description = "The record is not in a state that allows its acknowledgement."


class ShareSessionNotFoundError(RetriableError, BrokerResponseError, code=Code.SHARE_SESSION_NOT_FOUND):
    description = "The broker has dropped the share session."


class InvalidShareSessionEpochError(
    RetriableError, BrokerResponseError, code=Code.INVALID_SHARE_SESSION_EPOCH
):
    description = "The share session has a different epoch."


class FencedStateEpochError(BrokerResponseError, code=Code.FENCED_STATE_EPOCH):
    description = "The share group's state has a newer epoch."


class InvalidVoterKeyError(BrokerResponseError, code=Code.INVALID_VOTER_KEY):
    description = "The voter's key differs from that of the replica."


class DuplicateVoterError(BrokerResponseError, code=Code.DUPLICATE_VOTER):
    description = "A voter with this id already exists."


class VoterNotFoundError(BrokerResponseError, code=Code.VOTER_NOT_FOUND):
    description = "There is no voter with this id."


class InvalidRegularExpressionError(BrokerResponseError, code=Code.INVALID_REGULAR_EXPRESSION):
    description = "The regular expression can't be parsed."


class StreamsInvalidTopologyError(BrokerResponseError, code=Code.STREAMS_INVALID_TOPOLOGY):
    description = "The streams topology is not usable."


class StreamsInvalidTopologyEpochError(BrokerResponseError, code=Code.STREAMS_INVALID_TOPOLOGY_EPOCH):
    description = "The epoch of the streams topology is not usable."


class StreamsTopologyFencedError(BrokerResponseError, code=Code.STREAMS_TOPOLOGY_FENCED):
    description = "The epoch of the streams topology is older than the group's."


class ShareSessionLimitReachedError(
    RetriableError, BrokerResponseError, code=Code.SHARE_SESSION_LIMIT_REACHED
):
    description = "The broker has reached its limit of share sessions."


adopt_late_classes()
