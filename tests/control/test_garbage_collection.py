"""The garbage collector does not visit topics: with 100,000 of them it would hold the GIL for 100 ms."""

from __future__ import annotations

import gc

from cyproducer.control.cluster_view import TopicView
from cyproducer.control.topic_state import TopicState


def test_no_object_of_a_topic_is_tracked() -> None:
    view = TopicView({0: 1}, False)
    assert not gc.is_tracked(TopicState(0.0))
    assert not gc.is_tracked(view)
    assert not gc.is_tracked(view.partitions)
