"""Declarations of Kafka's messages: every API that the client or a broker of this package supports.

Owns names, types, versions and defaults of all fields, as in Apache Kafka's message schemas (protocol guide).
Does not own their meaning for this package (``responses``), how they are interpreted (``schema``, which
describes the syntax), or the choice of a version (``versions``). A message is parsed when it is first used.

A new API is one declaration here.
"""

from cyproducer.wire.schema import Api

PRODUCE = Api(
    0,
    "Produce",
    "3-13",
    flexible=9,
    client_throttles=6,
    releases="2.1:7 2.4:8 2.8:9 3.7:10 3.8:11 4.0:12 4.1:13",
    required=True,
    request="""
        transactional_id string nullable 3+ = null
        acks int16
        timeout_ms int32
        topic_data [TopicProduceData]
            name string 0-12
            topic_id uuid 13+ ignorable
            partition_data [PartitionProduceData]
                index int32
                records records nullable 0+
    """,
    response="""
        responses [TopicProduceResponse]
            name string 0-12
            topic_id uuid 13+
            partition_responses [PartitionProduceResponse]
                index int32
                error_code int16
                base_offset int64
                log_append_time_ms int64 = -1
                log_start_offset int64 5+ = -1
                record_errors [BatchIndexAndErrorMessage] 8+
                    batch_index int32
                    batch_index_error_message string nullable 8+ = null
                error_message text 8+ nullable 8+ = null
                current_leader LeaderIdAndEpoch 10+ tag 0 10+
                    leader_id int32 = -1
                    leader_epoch int32 = -1
        throttle_time_ms int32
        node_endpoints [NodeEndpoint] 10+ tag 0 10+ most 20000
            node_id int32
            host text
            port int32
            rack text nullable 10+ = null
    """,
)
"""KIP-98; KIP-467 for v8, KIP-951 for v10, KIP-890 for v12, KIP-516 for v13. The client's side is in C:
``produce_codec``."""

FETCH = Api(
    1,
    "Fetch",
    "4-18",
    client="4-12",
    flexible=12,
    client_throttles=8,
    releases="2.1:10 2.3:11 2.7:12 3.1:13 3.5:15 3.7:16 3.9:17 4.1:18",
    request="""
        cluster_id string 12+ nullable 12+ tag 0 12+ = null ignorable
        replica_id int32 0-14 = -1
        replica_state ReplicaState 15+ tag 1 15+
            replica_id int32 = -1
            replica_epoch int64 = -1
        max_wait_ms int32
        min_bytes int32
        max_bytes int32 = 2147483647
        isolation_level int8
        session_id int32 7+ ignorable
        session_epoch int32 7+ = -1 ignorable
        topics [FetchTopic]
            topic string 0-12
            topic_id uuid 13+ ignorable
            partitions [FetchPartition]
                partition int32
                current_leader_epoch int32 9+ = -1 ignorable
                fetch_offset int64
                last_fetched_epoch int32 12+ = -1
                log_start_offset int64 5+ = -1 ignorable
                partition_max_bytes int32
                replica_directory_id uuid 17+ tag 0 17+ ignorable
                high_watermark int64 18+ tag 1 18+ = 9223372036854775807 ignorable
        forgotten_topics_data [ForgottenTopic] 7+
            topic string 7-12 ignorable
            topic_id uuid 13+ ignorable
            partitions [int32]
        rack_id string 11+ ignorable
    """,
    response="""
        throttle_time_ms int32
        error_code int16 7+
        session_id int32 7+
        responses [FetchableTopicResponse]
            topic string 0-12
            topic_id uuid 13+
            partitions [PartitionData]
                partition_index int32
                error_code int16
                high_watermark int64
                last_stable_offset int64 = -1
                log_start_offset int64 5+ = -1
                diverging_epoch EpochEndOffset 12+ tag 0 12+
                    epoch int32 = -1
                    end_offset int64 = -1
                current_leader LeaderIdAndEpoch 12+ tag 1 12+
                    leader_id int32 = -1
                    leader_epoch int32 = -1
                snapshot_id SnapshotId 12+ tag 2 12+
                    end_offset int64 = -1
                    epoch int32 = -1
                aborted_transactions [AbortedTransaction] nullable 4+
                    producer_id int64
                    first_offset int64
                preferred_read_replica int32 11+ = -1
                records records nullable 0+
        node_endpoints [NodeEndpoint] 16+ tag 0 16+ most 20000
            node_id int32
            host text
            port int32
            rack text nullable 16+ = null
    """,
)
"""KIP-98; KIP-227 for v7. The client's lowest version is the first one with batches of magic 2. Its highest
version is the last one before topics are identified only by id (KIP-516)."""

LIST_OFFSETS = Api(
    2,
    "ListOffsets",
    "1-11",
    client="1-7",
    flexible=6,
    client_throttles=3,
    releases="2.1:4 2.2:5 2.8:6 3.0:7 3.6:8 3.9:9 4.0:10",
    request="""
        replica_id int32
        isolation_level int8 2+
        topics [ListOffsetsTopic]
            name string
            partitions [ListOffsetsPartition]
                partition_index int32
                current_leader_epoch int32 4+ = -1 ignorable
                timestamp int64
        timeout_ms int32 10+ ignorable
    """,
    response="""
        throttle_time_ms int32 2+
        topics [ListOffsetsTopicResponse]
            name string
            partitions [ListOffsetsPartitionResponse]
                partition_index int32
                error_code int16
                timestamp int64 = -1
                offset int64 = -1
                leader_epoch int32 4+ = -1
    """,
)
"""KIP-79."""

METADATA = Api(
    3,
    "Metadata",
    "0-13",
    client="1-13",
    flexible=9,
    client_throttles=6,
    releases="2.1:7 2.3:8 2.4:9 2.8:11 3.1:12 4.0:13",
    required=True,
    request="""
        topics [MetadataRequestTopic] nullable 1+
            topic_id uuid 10+ ignorable
            name string nullable 10+
        allow_auto_topic_creation boolean 4+ = true
        include_cluster_authorized_operations boolean 8-10
        include_topic_authorized_operations boolean 8+
    """,
    response="""
        throttle_time_ms int32 3+
        brokers [MetadataResponseBroker] most 20000
            node_id int32
            host text
            port int32
            rack text 1+ nullable 1+ = null
        cluster_id text 2+ nullable 2+ = null
        controller_id int32 1+ = -1
        topics [MetadataResponseTopic]
            error_code int16
            name string nullable 12+
            topic_id uuid 10+
            is_internal boolean 1+
            partitions [MetadataResponsePartition]
                error_code int16
                partition_index int32
                leader_id int32
                leader_epoch int32 7+ = -1
                replica_nodes [int32]
                isr_nodes [int32]
                offline_replicas [int32] 5+
            topic_authorized_operations int32 8+ = -2147483648
        cluster_authorized_operations int32 8-10 = -2147483648
        error_code int16 13+
    """,
)
"""KIP-4; KIP-430 for v8, KIP-516 for v10. The client reads partitions in C."""

OFFSET_COMMIT = Api(
    8,
    "OffsetCommit",
    "2-9",
    flexible=8,
    request="""
        group_id string
        generation_id_or_member_epoch int32 = -1
        member_id string
        group_instance_id string 7+ nullable 7+ = null
        retention_time_ms int64 2-4 = -1
        topics [OffsetCommitRequestTopic]
            name string
            partitions [OffsetCommitRequestPartition]
                partition_index int32
                committed_offset int64
                committed_leader_epoch int32 6+ = -1 ignorable
                committed_metadata string nullable 0+
    """,
    response="""
        throttle_time_ms int32 3+
        topics [OffsetCommitResponseTopic]
            name string
            partitions [OffsetCommitResponsePartition]
                partition_index int32
                error_code int16
    """,
)

OFFSET_FETCH = Api(
    9,
    "OffsetFetch",
    "1-9",
    flexible=6,
    request="""
        group_id string 0-7
        topics [OffsetFetchRequestTopic] 0-7 nullable 2-7
            name string
            partition_indexes [int32]
        groups [OffsetFetchRequestGroup] 8+
            group_id string
            member_id string 9+ nullable 9+ = null ignorable
            member_epoch int32 9+ = -1 ignorable
            topics [OffsetFetchRequestTopics] nullable 8+
                name string ignorable
                partition_indexes [int32]
        require_stable boolean 7+
    """,
    response="""
        throttle_time_ms int32 3+
        topics [OffsetFetchResponseTopic] 0-7
            name string
            partitions [OffsetFetchResponsePartition]
                partition_index int32
                committed_offset int64
                committed_leader_epoch int32 5-7 = -1
                metadata string nullable 0-7
                error_code int16
        error_code int16 2-7
        groups [OffsetFetchResponseGroup] 8+
            group_id string
            topics [OffsetFetchResponseTopics]
                name string
                partitions [OffsetFetchResponsePartitions]
                    partition_index int32
                    committed_offset int64
                    committed_leader_epoch int32 = -1
                    metadata string nullable 8+
                    error_code int16
            error_code int16
    """,
)

FIND_COORDINATOR = Api(
    10,
    "FindCoordinator",
    "0-6",
    client="1-6",
    flexible=3,
    client_throttles=2,
    releases="2.1:2 2.4:3 3.0:4 3.8:5 3.9:6",
    request="""
        key string 0-3
        key_type int8 1+
        coordinator_keys [string] 4+
    """,
    response="""
        throttle_time_ms int32 1+
        error_code int16 0-3
        error_message text 1-3 nullable 1-3
        node_id int32 0-3
        host text 0-3
        port int32 0-3
        coordinators [Coordinator] 4+
            key string
            node_id int32
            host text
            port int32
            error_code int16
            error_message text nullable 4+
    """,
)
"""KIP-98; KIP-699 for v4. Version 0 finds only the coordinators of groups."""

JOIN_GROUP = Api(
    11,
    "JoinGroup",
    "0-9",
    flexible=6,
    request="""
        group_id string
        session_timeout_ms int32
        rebalance_timeout_ms int32 1+ = -1 ignorable
        member_id string
        group_instance_id string 5+ nullable 5+ = null
        protocol_type string
        protocols [JoinGroupRequestProtocol]
            name string
            metadata bytes
        reason string 8+ nullable 8+ = null ignorable
    """,
    response="""
        throttle_time_ms int32 2+
        error_code int16
        generation_id int32 = -1
        protocol_type string 7+ nullable 7+ = null
        protocol_name string nullable 7+
        leader string
        skip_assignment boolean 9+
        member_id string
        members [JoinGroupResponseMember]
            member_id string
            group_instance_id string 5+ nullable 5+ = null
            metadata bytes
    """,
)

HEARTBEAT = Api(
    12,
    "Heartbeat",
    "0-4",
    flexible=4,
    request="""
        group_id string
        generation_id int32
        member_id string
        group_instance_id string 3+ nullable 3+ = null
    """,
    response="""
        throttle_time_ms int32 1+
        error_code int16
    """,
)

LEAVE_GROUP = Api(
    13,
    "LeaveGroup",
    "0-5",
    flexible=4,
    request="""
        group_id string
        member_id string 0-2
        members [MemberIdentity] 3+
            member_id string
            group_instance_id string nullable 3+ = null
            reason string 5+ nullable 5+ = null ignorable
    """,
    response="""
        throttle_time_ms int32 1+
        error_code int16
        members [MemberResponse] 3+
            member_id string
            group_instance_id string nullable 3+
            error_code int16
    """,
)

SYNC_GROUP = Api(
    14,
    "SyncGroup",
    "0-5",
    flexible=4,
    request="""
        group_id string
        generation_id int32
        member_id string
        group_instance_id string 3+ nullable 3+ = null
        protocol_type string 5+ nullable 5+ = null ignorable
        protocol_name string 5+ nullable 5+ = null ignorable
        assignments [SyncGroupRequestAssignment]
            member_id string
            assignment bytes
    """,
    response="""
        throttle_time_ms int32 1+
        error_code int16
        protocol_type string 5+ nullable 5+ = null
        protocol_name string 5+ nullable 5+ = null
        assignment bytes
    """,
)

DESCRIBE_GROUPS = Api(
    15,
    "DescribeGroups",
    "0-6",
    flexible=5,
    request="""
        groups [string]
        include_authorized_operations boolean 3+
    """,
    response="""
        throttle_time_ms int32 1+
        groups [DescribedGroup]
            error_code int16
            error_message text 6+ nullable 6+ = null
            group_id string
            group_state string
            protocol_type string
            protocol_data string
            members [DescribedGroupMember]
                member_id string
                group_instance_id string 4+ nullable 4+ = null
                client_id string
                client_host string
                member_metadata bytes
                member_assignment bytes
            authorized_operations int32 3+ = -2147483648
    """,
)

LIST_GROUPS = Api(
    16,
    "ListGroups",
    "0-5",
    flexible=3,
    request="""
        states_filter [string] 4+
        types_filter [string] 5+
    """,
    response="""
        throttle_time_ms int32 1+
        error_code int16
        groups [ListedGroup]
            group_id string
            protocol_type string
            group_state string 4+
            group_type string 5+
    """,
)

SASL_HANDSHAKE = Api(
    17,
    "SaslHandshake",
    "0-1",
    client="1",
    releases="2.1:1",
    request="""
        mechanism string
    """,
    response="""
        error_code int16
        mechanisms [text]
    """,
)
"""KIP-43; KIP-152 for v1. Version 0 is followed by bytes that are not Kafka requests."""

API_VERSIONS = Api(
    18,
    "ApiVersions",
    "0-5",
    flexible=3,
    client_throttles=2,
    releases="2.1:2 2.4:3 3.9:4 4.4:5",
    required=True,
    request="""
        client_software_name string 3+ ignorable
        client_software_version string 3+ ignorable
        cluster_id string 5+ nullable 5+ = null ignorable
        node_id int32 5+ = -1 ignorable
    """,
    response="""
        error_code int16
        api_keys [ApiVersion]
            api_key int16
            min_version int16
            max_version int16
        throttle_time_ms int32 1+
        supported_features [SupportedFeatureKey] 3+ tag 0 3+
            name string
            min_version int16
            max_version int16
        finalized_features_epoch int64 3+ tag 1 3+ = -1
        finalized_features [FinalizedFeatureKey] 3+ tag 2 3+
            name string
            max_version_level int16
            min_version_level int16
        zk_migration_ready boolean 3+ tag 3 3+
    """,
)
"""KIP-35; KIP-511 for v3, KIP-584 for its features, KIP-1242 for v5."""

CREATE_TOPICS = Api(
    19,
    "CreateTopics",
    "2-7",
    flexible=5,
    client_throttles=3,
    releases="2.1:3 2.4:5 2.7:6 2.8:7",
    request="""
        topics [CreatableTopic]
            name string
            num_partitions int32
            replication_factor int16
            assignments [CreatableReplicaAssignment]
                partition_index int32
                broker_ids [int32]
            configs [CreatableTopicConfig]
                name string
                value string nullable 0+
        timeout_ms int32 = 60000
        validate_only boolean
    """,
    response="""
        throttle_time_ms int32
        topics [CreatableTopicResult]
            name string
            topic_id uuid 7+
            error_code int16
            error_message text nullable 0+
            topic_config_error_code int16 5+ tag 0 5+
            num_partitions int32 5+ = -1
            replication_factor int16 5+ = -1
            configs [CreatableTopicConfigs] 5+ nullable 5+
                name string
                value string nullable 5+
                read_only boolean
                config_source int8 = -1
                is_sensitive boolean
    """,
)
"""KIP-4; KIP-464 for v4."""

DELETE_TOPICS = Api(
    20,
    "DeleteTopics",
    "1-6",
    flexible=4,
    request="""
        topics [DeleteTopicState] 6+
            name string nullable 6+ = null
            topic_id uuid
        topic_names [string] 0-5
        timeout_ms int32
    """,
    response="""
        throttle_time_ms int32
        responses [DeletableTopicResult]
            name string nullable 6+
            topic_id uuid 6+
            error_code int16
            error_message text 5+ nullable 5+ = null
    """,
)

DELETE_RECORDS = Api(
    21,
    "DeleteRecords",
    "0-2",
    flexible=2,
    request="""
        topics [DeleteRecordsTopic]
            name string
            partitions [DeleteRecordsPartition]
                partition_index int32
                offset int64
        timeout_ms int32
    """,
    response="""
        throttle_time_ms int32
        topics [DeleteRecordsTopicResult]
            name string
            partitions [DeleteRecordsPartitionResult]
                partition_index int32
                low_watermark int64
                error_code int16
    """,
)

INIT_PRODUCER_ID = Api(
    22,
    "InitProducerId",
    "0-5",
    flexible=2,
    client_throttles=1,
    releases="2.1:1 2.4:2 2.5:3 2.7:4 3.8:5",
    request="""
        transactional_id string nullable 0+
        transaction_timeout_ms int32
        producer_id int64 3+ = -1
        producer_epoch int16 3+ = -1
    """,
    response="""
        throttle_time_ms int32
        error_code int16
        producer_id int64 = -1
        producer_epoch int16
    """,
)
"""KIP-98; KIP-360 for v3. Without this API, the producer cannot be idempotent with this broker."""

OFFSET_FOR_LEADER_EPOCH = Api(
    23,
    "OffsetForLeaderEpoch",
    "2-4",
    flexible=4,
    request="""
        replica_id int32 3+ = -2 ignorable
        topics [OffsetForLeaderTopic]
            topic string
            partitions [OffsetForLeaderPartition]
                partition int32
                current_leader_epoch int32 = -1
                leader_epoch int32
    """,
    response="""
        throttle_time_ms int32
        topics [OffsetForLeaderTopicResult]
            topic string
            partitions [EpochEndOffset]
                error_code int16
                partition int32
                leader_epoch int32 = -1
                end_offset int64 = -1
    """,
)

ADD_PARTITIONS_TO_TXN = Api(
    24,
    "AddPartitionsToTxn",
    "0-5",
    client="0-3",
    flexible=3,
    client_throttles=1,
    releases="2.1:1 2.7:2 2.8:3 3.6:4 3.8:5",
    request="""
        transactions [AddPartitionsToTxnTransaction] 4+
            transactional_id string
            producer_id int64
            producer_epoch int16
            verify_only boolean
            topics [AddPartitionsToTxnTopic]
                name string
                partitions [int32]
        v3_and_below_transactional_id string 0-3
        v3_and_below_producer_id int64 0-3
        v3_and_below_producer_epoch int16 0-3
        v3_and_below_topics [AddPartitionsToTxnTopic] 0-3
    """,
    response="""
        throttle_time_ms int32
        error_code int16 4+
        results_by_transaction [AddPartitionsToTxnResult] 4+
            transactional_id string
            topic_results [AddPartitionsToTxnTopicResult]
                name string
                results_by_partition [AddPartitionsToTxnPartitionResult]
                    partition_index int32
                    partition_error_code int16
        results_by_topic_v3_and_below [AddPartitionsToTxnTopicResult] 0-3
    """,
)
"""KIP-98. Versions 4 and 5 are for brokers (KIP-890)."""

ADD_OFFSETS_TO_TXN = Api(
    25,
    "AddOffsetsToTxn",
    "0-4",
    flexible=3,
    client_throttles=1,
    releases="2.1:1 2.7:2 2.8:3 3.8:4",
    request="""
        transactional_id string
        producer_id int64
        producer_epoch int16
        group_id string
    """,
    response="""
        throttle_time_ms int32
        error_code int16
    """,
)
"""KIP-98."""

END_TXN = Api(
    26,
    "EndTxn",
    "0-5",
    flexible=3,
    client_throttles=1,
    releases="2.1:1 2.7:2 2.8:3 3.8:4 4.0:5",
    request="""
        transactional_id string
        producer_id int64
        producer_epoch int16
        committed boolean
    """,
    response="""
        throttle_time_ms int32
        error_code int16
        producer_id int64 5+ = -1
        producer_epoch int16 5+ = -1
    """,
)
"""KIP-98; KIP-890 for v5."""

TXN_OFFSET_COMMIT = Api(
    28,
    "TxnOffsetCommit",
    "0-6",
    # Version 6 needs the ids of topics that the program reads, which this client knows nothing about.
    client="0-5",
    flexible=3,
    client_throttles=1,
    releases="2.1:2 2.5:3 3.8:4 4.0:5 4.4:6",
    request="""
        transactional_id string
        group_id string
        producer_id int64
        producer_epoch int16
        generation_id int32 3+ = -1
        member_id string 3+
        group_instance_id string 3+ nullable 3+ = null
        topics [TxnOffsetCommitRequestTopic]
            name string 0-5 ignorable
            topic_id uuid 6+ ignorable
            partitions [TxnOffsetCommitRequestPartition]
                partition_index int32
                committed_offset int64
                committed_leader_epoch int32 2+ = -1 ignorable
                committed_metadata string nullable 0+
    """,
    response="""
        throttle_time_ms int32
        topics [TxnOffsetCommitResponseTopic]
            name string 0-5 ignorable
            topic_id uuid 6+ ignorable
            partitions [TxnOffsetCommitResponsePartition]
                partition_index int32
                error_code int16
    """,
)
"""KIP-98; KIP-447 for v3, KIP-1319 for v6."""

DESCRIBE_CONFIGS = Api(
    32,
    "DescribeConfigs",
    "1-4",
    flexible=4,
    client_throttles=2,
    releases="2.1:2 2.6:3 2.8:4",
    request="""
        resources [DescribeConfigsResource]
            resource_type int8
            resource_name string
            configuration_keys [string] nullable 0+
        include_synonyms boolean
        include_documentation boolean 3+
    """,
    response="""
        throttle_time_ms int32
        results [DescribeConfigsResult]
            error_code int16
            error_message text nullable 0+
            resource_type int8
            resource_name string
            configs [DescribeConfigsResourceResult]
                name string
                value string nullable 0+
                read_only boolean
                config_source int8 = -1
                is_sensitive boolean
                synonyms [DescribeConfigsSynonym]
                    name string
                    value string nullable 0+
                    source int8
                config_type int8 3+
                documentation string 3+ nullable 0+
    """,
)
"""KIP-133."""

SASL_AUTHENTICATE = Api(
    36,
    "SaslAuthenticate",
    "0-2",
    flexible=2,
    releases="2.1:0 2.2:1 2.5:2",
    request="""
        auth_bytes bytes
    """,
    response="""
        error_code int16
        error_message text nullable 0+
        auth_bytes bytes
        session_lifetime_ms int64 1+
    """,
)
"""KIP-152; KIP-368 for v1."""

CREATE_PARTITIONS = Api(
    37,
    "CreatePartitions",
    "0-3",
    flexible=2,
    request="""
        topics [CreatePartitionsTopic]
            name string
            count int32
            assignments [CreatePartitionsAssignment] nullable 0+
                broker_ids [int32]
        timeout_ms int32
        validate_only boolean
    """,
    response="""
        throttle_time_ms int32
        results [CreatePartitionsTopicResult]
            name string
            error_code int16
            error_message text nullable 0+ = null
    """,
)

DELETE_GROUPS = Api(
    42,
    "DeleteGroups",
    "0-2",
    flexible=2,
    request="""
        groups_names [string]
    """,
    response="""
        throttle_time_ms int32
        results [DeletableGroupResult]
            group_id string
            error_code int16
    """,
)

INCREMENTAL_ALTER_CONFIGS = Api(
    44,
    "IncrementalAlterConfigs",
    "0-1",
    flexible=1,
    request="""
        resources [AlterConfigsResource]
            resource_type int8
            resource_name string
            configs [AlterableConfig]
                name string
                config_operation int8
                value string nullable 0+
        validate_only boolean
    """,
    response="""
        throttle_time_ms int32
        responses [AlterConfigsResourceResponse]
            error_code int16
            error_message text nullable 0+
            resource_type int8
            resource_name string
    """,
)

OFFSET_DELETE = Api(
    47,
    "OffsetDelete",
    "0",
    request="""
        group_id string
        topics [OffsetDeleteRequestTopic]
            name string
            partitions [OffsetDeleteRequestPartition]
                partition_index int32
    """,
    response="""
        error_code int16
        throttle_time_ms int32
        topics [OffsetDeleteResponseTopic]
            name string
            partitions [OffsetDeleteResponsePartition]
                partition_index int32
                error_code int16
    """,
)
"""KIP-496."""

UPDATE_FEATURES = Api(
    57,
    "UpdateFeatures",
    "0-2",
    flexible=0,
    request="""
        timeout_ms int32 = 60000
        feature_updates [FeatureUpdateKey]
            feature text
            max_version_level int16
            allow_downgrade boolean 0
            upgrade_type int8 1+ = 1
        validate_only boolean 1+
    """,
    response="""
        throttle_time_ms int32
        error_code int16
        error_message text nullable 0+
        results [UpdatableFeatureResult] 0-1
            feature text
            error_code int16
            error_message text nullable 0+
    """,
)
"""KIP-584."""

DESCRIBE_CLUSTER = Api(
    60,
    "DescribeCluster",
    "0-2",
    flexible=0,
    request="""
        include_cluster_authorized_operations boolean
        endpoint_type int8 1+ = 1
        include_fenced_brokers boolean 2+
    """,
    response="""
        throttle_time_ms int32
        error_code int16
        error_message text nullable 0+ = null
        endpoint_type int8 1+ = 1
        cluster_id text
        controller_id int32 = -1
        brokers [DescribeClusterBroker] most 20000
            broker_id int32
            host text
            port int32
            rack text nullable 0+ = null
            is_fenced boolean 2+
        cluster_authorized_operations int32 = -2147483648
    """,
)

DESCRIBE_PRODUCERS = Api(
    61,
    "DescribeProducers",
    "0",
    flexible=0,
    request="""
        topics [TopicRequest]
            name string
            partition_indexes [int32]
    """,
    response="""
        throttle_time_ms int32
        topics [TopicResponse]
            name string
            partitions [PartitionResponse]
                partition_index int32
                error_code int16
                error_message text nullable 0+ = null
                active_producers [ProducerState]
                    producer_id int64
                    producer_epoch int32
                    last_sequence int32 = -1
                    last_timestamp int64 = -1
                    coordinator_epoch int32
                    current_txn_start_offset int64 = -1
    """,
)

DESCRIBE_TRANSACTIONS = Api(
    65,
    "DescribeTransactions",
    "0",
    flexible=0,
    client_throttles=0,
    releases="3.0:0",
    request="""
        transactional_ids [string]
    """,
    response="""
        throttle_time_ms int32
        transaction_states [TransactionState]
            error_code int16
            transactional_id string
            transaction_state text
            transaction_timeout_ms int32
            transaction_start_time_ms int64
            producer_id int64
            producer_epoch int16
            topics [TopicData]
                topic string
                partitions [int32]
    """,
)
"""KIP-664."""

LIST_TRANSACTIONS = Api(
    66,
    "ListTransactions",
    "0-2",
    flexible=0,
    client_throttles=0,
    releases="3.0:0 3.8:1 4.1:2",
    request="""
        state_filters [string]
        producer_id_filters [int64]
        duration_filter int64 1+ = -1
        transactional_id_pattern string 2+ nullable 2+ = null
    """,
    response="""
        throttle_time_ms int32
        error_code int16
        unknown_state_filters [text]
        transaction_states [TransactionState]
            transactional_id string
            producer_id int64
            transaction_state text
    """,
)
"""KIP-664; KIP-994 for v1, KIP-1152 for v2."""

CONSUMER_GROUP_HEARTBEAT = Api(
    68,
    "ConsumerGroupHeartbeat",
    "0-1",
    flexible=0,
    request="""
        group_id string
        member_id string
        member_epoch int32
        instance_id string nullable 0+ = null
        rack_id string nullable 0+ = null
        rebalance_timeout_ms int32 = -1
        subscribed_topic_names [string] nullable 0+ = null
        subscribed_topic_regex string 1+ nullable 1+ = null
        server_assignor string nullable 0+ = null
        topic_partitions [TopicPartitions] nullable 0+ = null
            topic_id uuid
            partitions [int32]
    """,
    response="""
        throttle_time_ms int32
        error_code int16
        error_message text nullable 0+ = null
        member_id string nullable 0+ = null
        member_epoch int32
        heartbeat_interval_ms int32
        assignment Assignment nullable 0+ = null
            topic_partitions [TopicPartitions]
                topic_id uuid
                partitions [int32]
    """,
)
"""KIP-848; KIP-1082 for v1."""

CONSUMER_GROUP_DESCRIBE = Api(
    69,
    "ConsumerGroupDescribe",
    "0-1",
    flexible=0,
    request="""
        group_ids [string]
        include_authorized_operations boolean
    """,
    response="""
        throttle_time_ms int32
        groups [DescribedGroup]
            error_code int16
            error_message text nullable 0+ = null
            group_id string
            group_state string
            group_epoch int32
            assignment_epoch int32
            assignor_name string
            members [Member]
                member_id string
                instance_id string nullable 0+ = null
                rack_id string nullable 0+ = null
                member_epoch int32
                client_id string
                client_host string
                subscribed_topic_names [string]
                subscribed_topic_regex string nullable 0+ = null
                assignment Assignment
                    topic_partitions [TopicPartitions]
                        topic_id uuid
                        topic_name string
                        partitions [int32]
                target_assignment Assignment
                member_type int8 1+ = -1
            authorized_operations int32 = -2147483648
    """,
)
"""KIP-848; KIP-1099 for v1."""

GET_TELEMETRY_SUBSCRIPTIONS = Api(
    71,
    "GetTelemetrySubscriptions",
    "0",
    flexible=0,
    client_throttles=0,
    releases="3.7:0",
    request="""
        client_instance_id uuid
    """,
    response="""
        throttle_time_ms int32
        error_code int16
        client_instance_id uuid
        subscription_id int32
        accepted_compression_types [int8]
        push_interval_ms int32
        telemetry_max_bytes int32
        delta_temporality boolean
        requested_metrics [string]
    """,
)
"""KIP-714."""

PUSH_TELEMETRY = Api(
    72,
    "PushTelemetry",
    "0",
    flexible=0,
    client_throttles=0,
    releases="3.7:0",
    request="""
        client_instance_id uuid
        subscription_id int32
        terminating boolean
        compression_type int8
        metrics bytes
    """,
    response="""
        throttle_time_ms int32
        error_code int16
    """,
)
"""KIP-714."""

LIST_CONFIG_RESOURCES = Api(
    74,
    "ListConfigResources",
    "0-1",
    flexible=0,
    request="""
        resource_types [int8] 1+
    """,
    response="""
        throttle_time_ms int32
        error_code int16
        config_resources [ConfigResource]
            resource_name string
            resource_type int8 1+ = 16
    """,
)
"""KIP-1142; version 0 lists client metrics only (KIP-714)."""

ALL = tuple(value for value in list(globals().values()) if isinstance(value, Api))
"""All APIs, by key."""
CLIENT = tuple(api for api in ALL if api.releases)
"""The APIs that this package's client uses."""
