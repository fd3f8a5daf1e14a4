"""Plays every kept fuzzing input against the installed package, without sanitizers.

Repeats the checks of the C targets as far as Python can observe them.
"""

import struct
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cyproducer import errors
from cyproducer.records.compression import DecompressionError, compressor_for, decompress, decompress_any
from cyproducer.wire import protocol
from cyproducer.wire.messages import ALL
from cyproducer.wire.primitives import Reader, Writer
from tests.fuzz import corpus, fuzz_arguments, fuzz_arrow, fuzz_embedded, fuzz_rig, fuzz_security, fuzz_tls
from tests.fuzz.decoders import DECODERS
from tests.fuzz.fuzz_rig import IDS, NAMES, acknowledge, retry_all
from tools.harness.rig import Rig

BOUNDS = (0, 1, 100, 4096, 65536, 1 << 20)
LIMITS = (4, 5, 100, 8192, 16384, 1 << 20, 100 << 20, 0x7FFFFFFF)


def two_byte_inputs(target: str) -> list[bytes]:
    return [data for data in corpus.inputs(target) if len(data) >= 2]


@pytest.mark.parametrize(
    "target",
    [
        "produce",
        "frames",
        "messages",
        "declared",
        "compression",
        "rig",
        "arguments",
        "arrow",
        "tls",
        "security",
        "embedded",
    ],
)
def test_each_corpus_has_inputs(target: str) -> None:
    assert len(corpus.inputs(target)) >= 10


def test_a_produce_response_is_accepted_or_ends_the_connection_and_the_batches_are_sent_again() -> None:
    taken = refused = 0
    for data in two_byte_inputs("produce"):
        names = NAMES[: 1 + data[1] % len(NAMES)]
        with Rig(produce_version=3 + data[0] % 11, linger_ms=1, seed=1) as rig:
            rig.fates.hook = retry_all
            for name in names:
                rig.sender.apply_topic(name, IDS[NAMES.index(name)].bytes, [1, 1, 1])
            futures = [rig.send(name, b"v", partition=index) for name in names for index in range(3)]
            rig.clock.advance_ms(1)
            (seen,) = rig.requests()
            frame = struct.pack(">i", seen.request.correlation_id) + data[2:]
            fuzz_rig.respond(rig, seen, struct.pack(">i", len(frame)) + frame)
            if rig.control.broken:
                refused += 1
                ((node, cause),) = rig.control.broken
                assert (node, type(cause)) == (1, errors.KafkaProtocolError)
                assert "response of broker-1" in str(cause)
                assert not any(future.is_done for future in futures)
            else:
                taken += 1
            # Past the backoff, and past any throttle time in the response.
            rig.clock.advance_ms(60_100)
            for again in rig.requests():
                acknowledge(rig, again)
            assert all(future.succeeded() for future in futures)
    assert taken >= 10
    assert refused >= 10


@pytest.mark.parametrize("limit", LIMITS)
def test_a_stream_gives_its_frames_or_ends_the_connection(limit: int) -> None:
    for data in two_byte_inputs("frames"):
        if LIMITS[data[0] % 8] != limit:
            continue
        with Rig({"t": [1]}, linger_ms=1, receive_max=limit) as rig:
            rig.fates.hook = retry_all
            future = rig.send("t", b"value")
            rig.clock.advance_ms(1)
            (seen,) = rig.requests()
            fuzz_rig.respond(rig, seen, data[2:])
            length = int.from_bytes(data[2:6], "big", signed=True)
            waits = len(data) < 6 or (4 <= length <= limit and len(data) - 6 < length)
            assert bool(rig.control.broken) is not waits
            # No frame is a response to the request, so the connection ends at the latest by a timeout.
            rig.advance_ms(31_000)
            ((node, cause),) = rig.control.broken
            assert node == 1
            assert "broker-1" in str(cause)
            assert not future.is_done


def test_messages_give_a_result_or_an_error_that_names_the_response() -> None:
    read = refused = 0
    for data in two_byte_inputs("messages"):
        decode, lowest, versions = DECODERS[data[0] % len(DECODERS)]
        problem = None
        try:
            assert decode(lowest + data[1] % versions, data[2:]) is not None
            read += 1
        except errors.KafkaProtocolError as error:
            problem = str(error)
            refused += 1
        assert problem is None or " response: " in problem
    assert read >= 10
    assert refused >= 10


def test_each_decoder_of_the_client_is_fuzzed() -> None:
    assert {*protocol.DECODERS.values()} <= {each.decode for each in DECODERS}


def test_declared_messages_read_back_or_are_refused_with_the_offset() -> None:
    inputs = two_byte_inputs("declared")
    read = refused = 0
    for data in inputs:
        api = ALL[data[0] % len(ALL)]
        first, last = api.declared
        version = first + data[1] % (last - first + 1)
        message, part = (api.response, "response") if data[0] // len(ALL) % 2 else (api.request, "request")
        try:
            value = message.read(Reader(data[2:], part, version >= api.flexible), version)
        except errors.KafkaProtocolError as error:
            refused += "bytes remain at offset" in str(error)
            continue
        writer = Writer(part, version >= api.flexible, False)
        message.write(writer, version, value)
        assert message.read(Reader(writer.finish(), part, version >= api.flexible), version) == value
        read += 1
    assert read + refused == len(inputs)
    assert read >= 2 * len(ALL)
    assert refused >= 10


def test_compressed_data_gives_a_result_within_the_limit_or_an_error() -> None:
    names = ("none", "gzip", "snappy", "lz4", "zstd")
    for data in two_byte_inputs("compression"):
        codec, bound = data[0] % 5, BOUNDS[data[1] % len(BOUNDS)]
        packed = compressor_for(names[codec]).compress(data[2:])
        assert decompress(codec, packed, len(data) - 2) == data[2:]
        for function in (decompress, decompress_any):
            with suppress(DecompressionError):
                assert len(function(codec, data[2:], bound)) <= bound


@pytest.mark.slow
def test_invalid_responses_end_connections_but_lose_no_record() -> None:
    assert sum(fuzz_rig.play(data) for data in corpus.inputs("rig")) > 10


@settings(max_examples=150)
@given(data=st.binary(min_size=3, max_size=200))
def test_no_response_of_a_broker_loses_a_record(data: bytes) -> None:
    fuzz_rig.play(data)


@pytest.mark.parametrize("reader", [0, 1], ids=["in-c", "in-python"])
@pytest.mark.slow
def test_damaged_tls_ends_connections_but_loses_no_record(reader: int) -> None:
    played = [fuzz_tls.play(data) for data in corpus.inputs("tls") if len(data) > 2 and data[2] % 2 == reader]
    assert sum(played) > 10


@settings(max_examples=50)
@given(data=st.binary(min_size=10, max_size=200))
@pytest.mark.slow
def test_nothing_that_arrives_over_tls_loses_a_record(data: bytes) -> None:
    fuzz_tls.play(data)


@pytest.mark.parametrize("number", range(len(fuzz_security.PARSERS)))
def test_what_comes_before_kafkas_protocol_is_read_or_refused_without_a_secret(number: int) -> None:
    inputs = [data for data in corpus.inputs("security") if data[:1] == bytes([number])]
    assert len(inputs) >= 5
    for data in inputs:
        fuzz_security.play(data)


@settings(max_examples=300)
@given(data=st.binary(min_size=1, max_size=200))
def test_no_text_before_kafkas_protocol_is_trusted(data: bytes) -> None:
    fuzz_security.play(data)


def test_arguments_of_a_caller_arrive_or_are_refused() -> None:
    assert sum(fuzz_arguments.play(data) for data in corpus.inputs("arguments")) > 0


@settings(max_examples=150)
@given(data=st.binary(min_size=30, max_size=300))
@pytest.mark.slow
def test_no_arguments_of_a_caller_are_trusted(data: bytes) -> None:
    fuzz_arguments.play(data)


def test_arrow_data_arrives_or_is_refused() -> None:
    assert sum(fuzz_arrow.play(data) for data in corpus.inputs("arrow")) > 50


@settings(max_examples=150)
@given(data=st.binary(min_size=30, max_size=400))
def test_no_arrow_data_is_trusted(data: bytes) -> None:
    fuzz_arrow.play(data)


def test_requests_to_the_embedded_broker_are_answered_or_end_the_connection() -> None:
    assert sum(fuzz_embedded.play(data) for data in corpus.inputs("embedded")) > 500


@settings(max_examples=100)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(corpus.inputs("embedded")), st.integers(0, 500), st.binary(max_size=4)),
        min_size=1,
        max_size=5,
    )
)
def test_no_request_to_the_embedded_broker_is_trusted(steps: list[tuple[bytes, int, bytes]]) -> None:
    fuzz_embedded.play(b"".join(data[:at] + new + data[at + len(new) :] for data, at, new in steps))
