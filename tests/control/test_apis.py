"""The choice of API versions with various brokers."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyproducer.errors import IncompatibleBrokerVersion, UnrecognizedBrokerVersion
from cyproducer.wire.messages import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    CREATE_TOPICS,
    DESCRIBE_CONFIGS,
    DESCRIBE_TRANSACTIONS,
    END_TXN,
    FETCH,
    FIND_COORDINATOR,
    GET_TELEMETRY_SUBSCRIPTIONS,
    INIT_PRODUCER_ID,
    LIST_OFFSETS,
    LIST_TRANSACTIONS,
    METADATA,
    PRODUCE,
    PUSH_TELEMETRY,
    SASL_HANDSHAKE,
    TXN_OFFSET_COMMIT,
)
from cyproducer.wire.messages import CLIENT as APIS
from cyproducer.wire.schema import Api
from cyproducer.wire.versions import fallback_for, lacking, negotiate

#: What Kafka 4.1 responds (including lowest versions), for the APIs that a producer uses.
KAFKA_4_1 = {0: (0, 13), 3: (0, 13), 18: (0, 4), 22: (0, 5), 1: (4, 17)}


def chosen_with(theirs: Mapping[int, tuple[int, int]]) -> tuple[int | None, ...]:
    """The versions chosen for Produce, Metadata and InitProducerId; None: not offered."""
    chosen = negotiate(theirs)
    return tuple(chosen.get(api) for api in (PRODUCE, METADATA, INIT_PRODUCER_ID))


def test_the_highest_version_that_both_sides_support_is_chosen() -> None:
    assert chosen_with(KAFKA_4_1) == (13, 13, 5)
    assert chosen_with({0: (0, 99), 3: (0, 99), 22: (0, 99)}) == (13, 13, 5)
    assert chosen_with({0: (0, 8), 3: (0, 9), 22: (0, 2)}) == (8, 9, 2)


def test_a_broker_without_init_producer_id_can_be_used_without_idempotence() -> None:
    assert chosen_with({0: (0, 3), 3: (0, 4)}) == (3, 4, None)


@pytest.mark.parametrize(
    ("api", "theirs", "problem"),
    [
        (PRODUCE, (0, 2), "of Produce: the broker speaks 0 to 2, this client 3 to 13"),
        (PRODUCE, (14, 20), "of Produce: the broker speaks 14 to 20, this client 3 to 13"),
        (METADATA, (0, 0), "of Metadata: the broker speaks 0 to 0, this client 1 to 13"),
        (METADATA, (14, 14), "of Metadata: the broker speaks 14 to 14, this client 1 to 13"),
    ],
)
def test_no_common_version_names_the_api_and_both_ranges(
    api: Api, theirs: tuple[int, int], problem: str
) -> None:
    with pytest.raises(IncompatibleBrokerVersion, match=f"no common version {problem}"):
        negotiate({**KAFKA_4_1, api.key: theirs})


@pytest.mark.parametrize(
    ("api", "theirs", "why"),
    [
        (INIT_PRODUCER_ID, (6, 7), "the broker speaks 6 to 7, this client 0 to 5"),
        (SASL_HANDSHAKE, (0, 0), "the broker speaks 0 to 0, this client 1 to 1"),
        # A broker for which only other brokers add partitions.
        (ADD_PARTITIONS_TO_TXN, (4, 5), "the broker speaks 4 to 5, this client 0 to 3"),
    ],
)
def test_an_optional_api_without_a_common_version_is_left_out(
    api: Api, theirs: tuple[int, int], why: str
) -> None:
    ranges = {**KAFKA_4_1, api.key: theirs}
    chosen = negotiate(ranges)
    assert api not in chosen
    assert chosen[PRODUCE] == 13
    assert lacking(api, ranges) == f"no common version of {api.name}: {why}"


def test_versions_for_brokers_are_not_spoken() -> None:
    assert negotiate({**KAFKA_4_1, ADD_PARTITIONS_TO_TXN.key: (0, 5)})[ADD_PARTITIONS_TO_TXN] == 3


def test_an_empty_version_range_has_no_common_version() -> None:
    with pytest.raises(IncompatibleBrokerVersion, match="the broker speaks 9 to 5"):
        negotiate({**KAFKA_4_1, PRODUCE.key: (9, 5)})


@pytest.mark.parametrize("api", [PRODUCE, METADATA], ids=lambda api: api.name)
def test_a_broker_without_a_required_api_is_refused(api: Api) -> None:
    theirs = {key: value for key, value in KAFKA_4_1.items() if key != api.key}
    with pytest.raises(IncompatibleBrokerVersion, match=f"does not offer {api.name}, of which this client"):
        negotiate(theirs)


def test_produce_by_topic_id_needs_metadata_with_topic_ids() -> None:
    assert negotiate({**KAFKA_4_1, METADATA.key: (0, 10)})[PRODUCE] == 13
    assert negotiate({**KAFKA_4_1, METADATA.key: (0, 9)})[PRODUCE] == 12
    with pytest.raises(IncompatibleBrokerVersion, match="speaks 13 to 13, this client 3 to 12"):
        negotiate({**KAFKA_4_1, PRODUCE.key: (13, 13), METADATA.key: (0, 9)})


@pytest.mark.parametrize(
    ("release", "versions"),
    [
        ((2, 1), (7, 7, 1)),
        ((2, 2), (7, 7, 1)),
        ((2, 2, 1), (7, 7, 1)),
        ((2, 3), (7, 8, 1)),
        ((2, 4), (8, 9, 2)),
        ((2, 6), (8, 9, 3)),
        ((2, 7), (8, 9, 4)),
        ((2, 8), (9, 11, 4)),
        ((3, 0), (9, 11, 4)),
        ((3,), (9, 11, 4)),
        ((3, 6), (9, 12, 4)),
        ((3, 7), (10, 12, 4)),
        ((3, 8), (11, 12, 5)),
        ((3, 9), (11, 12, 5)),
        ((4, 0), (12, 13, 5)),
        ((4, 1), (13, 13, 5)),
        ((5, 0), (13, 13, 5)),
    ],
)
def test_a_release_stands_for_the_versions_it_supports(
    release: tuple[int, ...], versions: tuple[int, int, int]
) -> None:
    assert chosen_with(fallback_for(release)) == versions


TRANSACTION_APIS = (
    FIND_COORDINATOR,
    ADD_PARTITIONS_TO_TXN,
    ADD_OFFSETS_TO_TXN,
    END_TXN,
    TXN_OFFSET_COMMIT,
    DESCRIBE_TRANSACTIONS,
    LIST_TRANSACTIONS,
)


@pytest.mark.parametrize(
    ("release", "versions"),
    [
        ((2, 1), (2, 1, 1, 1, 2, None, None)),
        ((2, 4), (3, 1, 1, 1, 2, None, None)),
        ((2, 5), (3, 1, 1, 1, 3, None, None)),
        ((2, 7), (3, 2, 2, 2, 3, None, None)),
        ((2, 8), (3, 3, 3, 3, 3, None, None)),
        ((3, 0), (4, 3, 3, 3, 3, 0, 0)),
        ((3, 7), (4, 3, 3, 3, 3, 0, 0)),
        ((3, 8), (5, 3, 4, 4, 4, 0, 1)),
        ((3, 9), (6, 3, 4, 4, 4, 0, 1)),
        ((4, 0), (6, 3, 4, 5, 5, 0, 1)),
        ((4, 1), (6, 3, 4, 5, 5, 0, 2)),
    ],
)
def test_a_release_stands_for_the_versions_of_transactions(
    release: tuple[int, int], versions: tuple[int | None, ...]
) -> None:
    chosen = negotiate(fallback_for(release))
    assert tuple(chosen.get(api) for api in TRANSACTION_APIS) == versions


READING_APIS = (FETCH, LIST_OFFSETS, CREATE_TOPICS, DESCRIBE_CONFIGS)


@pytest.mark.parametrize(
    ("release", "versions"),
    [
        ((2, 1), (10, 4, 3, 2)),
        ((2, 2), (10, 5, 3, 2)),
        ((2, 3), (11, 5, 3, 2)),
        ((2, 4), (11, 5, 5, 2)),
        ((2, 6), (11, 5, 5, 3)),
        ((2, 7), (12, 5, 6, 3)),
        ((2, 8), (12, 6, 7, 4)),
        ((3, 0), (12, 7, 7, 4)),
        ((4, 1), (12, 7, 7, 4)),
    ],
)
def test_a_release_stands_for_the_versions_of_reading(
    release: tuple[int, int], versions: tuple[int, ...]
) -> None:
    chosen = negotiate(fallback_for(release))
    assert tuple(chosen[api] for api in READING_APIS) == versions


def test_a_release_is_not_assumed_to_have_the_apis_of_later_ones() -> None:
    assert {api for api in APIS if api.key not in fallback_for((2, 8))} == {
        DESCRIBE_TRANSACTIONS,
        LIST_TRANSACTIONS,
        GET_TELEMETRY_SUBSCRIPTIONS,
        PUSH_TELEMETRY,
    }
    telemetry = {GET_TELEMETRY_SUBSCRIPTIONS.key, PUSH_TELEMETRY.key}
    assert set(fallback_for((3, 6))) == {api.key for api in APIS} - telemetry
    assert set(fallback_for((3, 7))) == {api.key for api in APIS}


@pytest.mark.parametrize("release", [(2, 0), (0, 10, 2), (1,), ()])
def test_releases_before_2_1_are_refused(release: tuple[int, ...]) -> None:
    with pytest.raises(IncompatibleBrokerVersion, match=r"api_version=.* is older than Kafka 2\.1"):
        fallback_for(release)


def test_without_a_configured_release_there_is_no_fallback() -> None:
    with pytest.raises(UnrecognizedBrokerVersion, match=r"closed the connection .* set api_version="):
        fallback_for(None)


ranges = st.tuples(st.integers(0, 20), st.integers(0, 20))


@given(theirs=st.fixed_dictionaries({api.key: ranges for api in (PRODUCE, METADATA, INIT_PRODUCER_ID)}))
def test_both_sides_support_the_chosen_version(theirs: dict[int, tuple[int, int]]) -> None:
    try:
        chosen = negotiate(theirs)
    except IncompatibleBrokerVersion:
        return
    assert {PRODUCE, METADATA} <= set(chosen) <= {PRODUCE, METADATA, INIT_PRODUCER_ID}
    lowest, highest = theirs[INIT_PRODUCER_ID.key]
    assert (INIT_PRODUCER_ID in chosen) == (lowest <= min(highest, INIT_PRODUCER_ID.highest))
    for api, version in chosen.items():
        assert api.lowest <= version <= api.highest
        assert theirs[api.key][0] <= version <= theirs[api.key][1]
