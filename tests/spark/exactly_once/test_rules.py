"""The rules about batches, the names of transactional ids, and the records of the decision log."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyproducer.spark.exactly_once.decisions import (
    Decision,
    DecisionLogError,
    Place,
    TaskTransaction,
    decode,
    following_queries,
)
from cyproducer.spark.exactly_once.names import JOB, STREAM, Sink, is_prefix, location
from cyproducer.spark.exactly_once.rules import BatchOrderError, Standing, Verdict, sink_in, standing

SINK = Sink("app", STREAM, "/c")
TASK = TaskTransaction("app.x.0.0", 5, 7, (Place("t", 1, 100, 3),))


def after(batch: int, query: str = "q", **more: object) -> Standing:
    last = Decision(SINK.key, batch, 10, query, done=True, **more)  # type: ignore[arg-type]
    return Standing(SINK, last)


@pytest.mark.parametrize(
    ("found", "query", "batch", "verdict"),
    [
        (Standing(SINK), "q", 0, Verdict.WRITE),
        (Standing(SINK, starting_batch=7), "q", 7, Verdict.WRITE),
        (Standing(SINK, starting_batch=7), "q", 0, Verdict.WRITE),
        (after(4), "q", 5, Verdict.WRITE),
        (after(4), "q", 4, Verdict.SKIP),
        (after(4), "new", 0, Verdict.WRITE),
        # The option may stay.
        (Standing(SINK, after(8).last, starting_batch=7), "q", 9, Verdict.WRITE),
        (Standing(SINK, after(8).last, starting_batch=12), "q", 12, Verdict.WRITE),
    ],
)
def test_a_batch_that_follows_is_written_and_the_last_one_is_skipped(
    found: Standing, query: str, batch: int, verdict: Verdict
) -> None:
    assert found.judge(query, batch) is verdict


@pytest.mark.parametrize(
    ("found", "query", "batch", "says"),
    [
        (Standing(SINK), "q", 3, "set option 'startingBatchId' to 3"),
        (after(4), "q", 3, "batch 3 comes after batch 4 was decided"),
        (after(4), "q", 6, "batch 6, but batch 4 was decided last"),
        (after(4), "new", 5, "batch 5, but nothing was decided for query new"),
        (after(4, "new", earlier_queries=("q",)), "q", 0, "another query, new, has written since"),
        (Standing(SINK, after(9).last, starting_batch=7), "q", 7, "batch 7 comes after batch 9 was decided"),
        (Standing(SINK, None, (("q", "stream:/d"),)), "q", 0, "has written as 'stream:/d'"),
    ],
)
def test_a_batch_that_cannot_be_the_next_one_is_an_error(
    found: Standing, query: str, batch: int, says: str
) -> None:
    with pytest.raises(BatchOrderError) as raised:
        found.judge(query, batch)
    assert says in str(raised.value)


def test_versions_of_a_job_grow() -> None:
    sink = Sink("app", JOB, "a")
    found = Standing(sink, Decision(sink.key, 4, 10, done=True))
    assert [found.judge(None, version) for version in (4, 5, 9)] == [
        Verdict.SKIP,
        Verdict.WRITE,
        Verdict.WRITE,
    ]
    assert Standing(sink).judge(None, 0) is Verdict.WRITE
    with pytest.raises(BatchOrderError, match="txnVersion 3 comes after 4 was written"):
        found.judge(None, 3)


def test_a_jobs_version_is_skipped_only_for_the_same_topic_and_query() -> None:
    sink = Sink("app", JOB, "a")
    last = Decision(sink.key, 4, 10, "q", "t", done=True)
    assert Standing(sink, last, topic="t").judge("q", 4) is Verdict.SKIP
    # Spark Connect does not say which query it is.
    assert Standing(sink, last, topic="t").judge(None, 4) is Verdict.SKIP
    with pytest.raises(BatchOrderError, match="to topic 't', and this write is to the topics of a column"):
        Standing(sink, last).judge("q", 4)
    with pytest.raises(BatchOrderError, match="written by query q, and this is query r"):
        Standing(sink, last, topic="t").judge("r", 4)
    for query, topic in (("r", "t"), ("q", "u")):
        assert Standing(sink, last, topic=topic).judge(query, 5) is Verdict.WRITE


def test_tasks_get_the_history_without_transactions() -> None:
    history = {
        SINK.key: Decision(SINK.key, 4, 10, "q", tasks=(TASK,)),
        "stream:/d": Decision("stream:/d", 1, 1, "other", earlier_queries=("before",)),
        "job:j": Decision("job:j", 1, 1, "q"),
    }
    found = standing(SINK, history, "t", 3)
    assert (found.topic, found.starting_batch) == ("t", 3)
    assert found.last == Decision(SINK.key, 4, 10, "q", done=True)
    assert found.elsewhere == (("other", "stream:/d"),)


@pytest.mark.parametrize(
    ("spellings", "one"),
    [
        (
            [
                *("file:/x/c", "file:///x/c", "file://localhost/x/c", "FILE:///x/c", "file:/x/c/"),
                *("file:///x//c//", "file:/x/./c", "file:/x/y/../c"),
            ],
            "file:/x/c",
        ),
        (["/x/c", "//x/c/", "/x//c"], "/x/c"),
        (["hdfs://nn:8020/x", "hdfs://nn:8020//x/", "HDFS://nn:8020/x"], "hdfs://nn:8020/x"),
        (["hdfs:/x", "hdfs:///x"], "hdfs:/x"),
        (["s3a://Bucket", "s3a://Bucket/", "s3a://Bucket//"], "s3a://Bucket/"),
        (["abfss://c@a.dfs.core.windows.net/x/"], "abfss://c@a.dfs.core.windows.net/x"),
        (["dbfs:/x?y#z"], "dbfs:/x?y#z"),
        # No locations, or not known where they are.
        (["orders/"], "orders/"),
        (["a:b//c"], "a:b//c"),
        (["a:"], "a:"),
        ([""], ""),
        (["file:x/"], "file:x/"),
    ],
)
def test_a_location_has_one_spelling(spellings: list[str], one: str) -> None:
    assert {location(each) for each in spellings} == {one}
    assert location(one) == one


def test_a_sink_is_found_under_the_name_that_the_log_has() -> None:
    def found(sink: Sink, *keys: str) -> str:
        return sink_in({key: Decision(key, 0, 0) for key in keys}, sink).key

    sink = Sink("app", STREAM, "file:/c")
    assert found(sink) == "stream:file:/c"
    assert found(sink, "stream:file:/d", "job:file:///c", "stream:/c") == "stream:file:/c"
    assert found(sink, "stream:file:///c") == "stream:file:///c"
    assert found(sink, "stream:file:///c", "stream:file:/c") == "stream:file:/c"
    # A checkpoint that has moved has its first location as ``txnAppId``.
    assert found(Sink("app", STREAM, "file:///c/"), "stream:file:/c") == "stream:file:/c"
    assert found(Sink("app", JOB, "/c/"), "job:/c") == "job:/c/"
    with pytest.raises(BatchOrderError, match=r"under several names, 'file:///c', 'file:/c/': give"):
        found(sink, "stream:file:/c/", "stream:file:///c")


def test_queries_are_remembered_the_newest_first_and_not_for_ever() -> None:
    last = None
    for number in range(60):
        query = f"q{number}"
        last = Decision(SINK.key, 0, 0, query, earlier_queries=following_queries(last, query))
    assert last is not None
    assert last.earlier_queries == tuple(f"q{number}" for number in range(58, 8, -1))
    assert following_queries(last, "q59") == last.earlier_queries


# Names


def test_ids_begin_with_the_prefix_and_belong_to_one_sink() -> None:
    one, two = Sink("app", STREAM, "/c"), Sink("app", STREAM, "/c/")
    assert one.task_id(3, 0, 0, 0).startswith(f"app.{one.hash}.3.")
    assert one.owns(one.task_id(3, 1, 2, 3))
    assert not one.owns(two.task_id(3, 1, 2, 3))
    assert not one.owns(one.log_id)
    assert not one.owns(f"{one.task_id(0, 0, 0, 0)}.more")
    assert not Sink("app", STREAM, "/c").owns(Sink("app.x", STREAM, "/c").task_id(0, 0, 0, 0))
    assert one.hash != Sink("app", JOB, "/c").hash


def test_attempts_that_may_meet_have_ids_of_their_own() -> None:
    # Retries and copies of a stage attempt; two stage attempts; two plans.
    assert len({SINK.task_id(0, attempt, 100, 7) for attempt in range(4)}) == 4
    assert len({SINK.task_id(0, 0, task, 7) for task in range(100, 104)}) == 4
    assert len({SINK.task_id(0, 0, 100, planning) for planning in (7, 8)}) == 2
    # And not more than a few for each partition.
    every = {
        SINK.task_id(0, attempt, task, planning)
        for attempt in range(9)
        for task in range(99)
        for planning in range(9)
    }
    assert len(every) == 32


@pytest.mark.parametrize(
    ("text", "right"),
    [("app", True), ("a.b_c-9", True), ("", False), (".a", False), ("a b", False), ("a" * 101, False)],
)
def test_a_prefix_can_begin_a_topics_name(text: str, right: bool) -> None:
    assert is_prefix(text) is right


# Records

TEXT = st.text(max_size=20)
DECISIONS = st.builds(
    Decision,
    sink=TEXT,
    batch=st.integers(0, 1 << 60),
    rows=st.integers(0, 1 << 60),
    query=st.none() | TEXT,
    done=st.booleans(),
    tasks=st.lists(
        st.builds(
            TaskTransaction,
            TEXT,
            st.integers(0, 1 << 60),
            st.integers(0, 32767),
            st.lists(
                st.builds(Place, TEXT, st.integers(0, 9), st.integers(0, 1 << 60), st.integers(1, 99)),
                max_size=3,
            ).map(tuple),
        ),
        max_size=3,
    ).map(tuple),
    earlier_queries=st.lists(TEXT, max_size=3).map(tuple),
)


@given(DECISIONS)
def test_a_decision_is_read_as_it_was_written(decision: Decision) -> None:
    assert decode(decision.encode()) == decision


@pytest.mark.slow
def test_a_decision_about_a_thousand_tasks_fits_into_a_record() -> None:
    places = tuple(Place("topic", partition, 10**12 + partition, 12345) for partition in range(60))
    tasks = tuple(TaskTransaction(f"app.01234567.{n}.7", 10**6 + n, 5, places) for n in range(1000))
    decision = Decision(SINK.key, 7, 10**9, "q", tasks=tasks)
    value = decision.encode()
    assert len(value) < 900_000
    assert decode(value) == decision


def test_what_is_done_has_no_transactions() -> None:
    assert Decision(SINK.key, 1, 2, "q", tasks=(TASK,)).as_done() == Decision(SINK.key, 1, 2, "q", done=True)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"no json",
        b"[]",
        b"{}",
        b'{"version":1}',
        b'{"version":1,"tasks":3,"earlier_queries":[]}',
        b"zzz",
    ],
)
def test_other_records_are_no_decisions(value: bytes) -> None:
    with pytest.raises(DecisionLogError, match="a record that is no decision"):
        decode(value)


def test_a_later_versions_record_says_so() -> None:
    with pytest.raises(DecisionLogError, match="a record of version 2, and this cyproducer knows 1"):
        decode(b'{"version":2}')
