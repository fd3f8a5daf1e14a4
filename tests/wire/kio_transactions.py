"""kio's codec for the responses of transactions, from this package's types; see ``kio_oracle``."""

import datetime
from collections.abc import Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from cyproducer.wire.responses import (
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnResponse,
    DescribeTransactionsResponse,
    EndTxnResponse,
    FindCoordinatorResponse,
    ListTransactionsResponse,
    TxnOffsetCommitResponse,
)
from tests.wire.kio_oracle import make, milliseconds, schema, write_response

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def write_find_coordinator(version: int, response: FindCoordinatorResponse, coordinators: int = 1) -> bytes:
    """``coordinators``: how often the response has the coordinator, from version 4 on."""
    module = schema("find_coordinator", version, "response")
    fields: dict[str, Any] = {
        "error_code": ErrorCode(response.error_code),
        "error_message": response.error_message,
        "node_id": response.node_id,
        "host": response.host,
        "port": response.port,
    }
    if version >= 4:
        fields = {"coordinators": (module.Coordinator(key="tx", **fields),) * coordinators}
    throttle = milliseconds(response.throttle_time_ms)
    return write_response(module.FindCoordinatorResponse(throttle_time=throttle, **fields))


def _by_topic(errors: Mapping[tuple[str, int], int]) -> dict[str, list[tuple[int, ErrorCode]]]:
    topics: dict[str, list[tuple[int, ErrorCode]]] = {}
    for (topic, partition), code in errors.items():
        topics.setdefault(topic, []).append((partition, ErrorCode(code)))
    return topics


def write_add_partitions_to_txn(version: int, response: AddPartitionsToTxnResponse) -> bytes:
    module = schema("add_partitions_to_txn", version, "response")
    return write_response(
        module.AddPartitionsToTxnResponse(
            throttle_time=milliseconds(response.throttle_time_ms),
            results_by_topic_v3_and_below=tuple(
                module.AddPartitionsToTxnTopicResult(
                    name=topic,
                    results_by_partition=tuple(
                        module.AddPartitionsToTxnPartitionResult(
                            partition_index=index, partition_error_code=code
                        )
                        for index, code in partitions
                    ),
                )
                for topic, partitions in _by_topic(response.errors).items()
            ),
        )
    )


def write_txn_offset_commit(version: int, response: TxnOffsetCommitResponse) -> bytes:
    module = schema("txn_offset_commit", version, "response")
    return write_response(
        module.TxnOffsetCommitResponse(
            throttle_time=milliseconds(response.throttle_time_ms),
            topics=tuple(
                module.TxnOffsetCommitResponseTopic(
                    name=topic,
                    partitions=tuple(
                        module.TxnOffsetCommitResponsePartition(partition_index=index, error_code=code)
                        for index, code in partitions
                    ),
                )
                for topic, partitions in _by_topic(response.errors).items()
            ),
        )
    )


def write_add_offsets_to_txn(version: int, response: AddOffsetsToTxnResponse) -> bytes:
    return write_response(
        schema("add_offsets_to_txn", version, "response").AddOffsetsToTxnResponse(
            throttle_time=milliseconds(response.throttle_time_ms), error_code=ErrorCode(response.error_code)
        )
    )


def write_end_txn(version: int, response: EndTxnResponse) -> bytes:
    return write_response(
        make(
            schema("end_txn", version, "response").EndTxnResponse,
            throttle_time=milliseconds(response.throttle_time_ms),
            error_code=ErrorCode(response.error_code),
            producer_id=response.producer_id,
            producer_epoch=response.producer_epoch,
        )
    )


def write_describe_transactions(version: int, response: DescribeTransactionsResponse) -> bytes:
    module = schema("describe_transactions", version, "response")
    return write_response(
        module.DescribeTransactionsResponse(
            throttle_time=milliseconds(response.throttle_time_ms),
            transaction_states=tuple(
                module.TransactionState(
                    error_code=ErrorCode(each.error_code),
                    transactional_id=each.transactional_id,
                    transaction_state=each.state,
                    transaction_timeout=milliseconds(each.timeout_ms),
                    transaction_start_time=_EPOCH + milliseconds(each.start_time_ms),
                    producer_id=each.producer_id,
                    producer_epoch=each.producer_epoch,
                    topics=tuple(
                        module.TopicData(topic=topic, partitions=tuple(partitions))
                        for topic, partitions in each.partitions.items()
                    ),
                )
                for each in response.transactions
            ),
        )
    )


def write_list_transactions(version: int, response: ListTransactionsResponse) -> bytes:
    module = schema("list_transactions", version, "response")
    return write_response(
        module.ListTransactionsResponse(
            throttle_time=milliseconds(response.throttle_time_ms),
            error_code=ErrorCode(response.error_code),
            unknown_state_filters=tuple(response.unknown_states),
            transaction_states=tuple(
                module.TransactionState(
                    transactional_id=each.transactional_id,
                    producer_id=each.producer_id,
                    transaction_state=each.state,
                )
                for each in response.transactions
            ),
        )
    )
