"""When a topic was last used, by which its metadata are kept."""

from tools.harness.rig import Rig


def test_each_parked_record_and_each_batch_counts_as_use_of_its_topic() -> None:
    with Rig(linger_ms=10) as rig:
        assert rig.sender.topic_used_ms("t") == 0
        for _ in range(2):
            rig.clock.advance_ms(1000)
            rig.send("t", b"parked")
            assert rig.sender.topic_used_ms("t") == rig.clock.monotonic_ns() / 1e6
        rig.sender.apply_topic("t", b"", [1])
        rig.advance_ms(10)
        rig.answer_all()
        rig.clock.advance_ms(1000)
        rig.send("t", b"in a batch")
        assert rig.sender.topic_used_ms("t") == rig.clock.monotonic_ns() / 1e6
