"""Ranges of rows that nobody acknowledges."""

from tools.harness.rig import Rig


def test_rows_of_several_batches_without_acks_are_one_range_for_each_partition() -> None:
    with Rig({"t": [1, 1]}, acks=0, batch_size=0) as rig:
        futures = [rig.path.send_many("t", [b"1", b"2", b"3"], partition=i) for i in range(2)]
        rig.requests()
        for partition, future in enumerate(futures):
            assert future.get(0).ranges == [(partition, -1, 3)]
            assert future.get(0).count == 3
