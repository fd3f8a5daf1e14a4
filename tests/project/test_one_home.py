"""Facts that need a second place: whoever forgets it when adding one is told here."""

import importlib
import re
from pathlib import Path

import pytest

from cyproducer.accumulator.metric_snapshot import PEAK_NAMES, SUM_NAMES, TIMED_NAMES
from cyproducer.config import ProducerConfig
from cyproducer.control.partitioners import BUILT_IN
from cyproducer.observability import definitions
from cyproducer.records.codecs import CODECS, Codec
from cyproducer.records.compression import compressor_for
from cyproducer.wire.messages import CLIENT, PRODUCE
from cyproducer.wire.protocol import DECODERS
from tools.harness.rig import Rig

# Its constants have no stub.
meters = importlib.import_module("cyproducer.base.meters")

SOURCES = Path(__file__).parents[2] / "cyproducer"


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_a_codec_has_a_compressor_and_an_option_for_its_levels(codec: Codec) -> None:
    assert compressor_for(codec.name).codec_id == codec.codec_id == CODECS.index(codec)
    if codec.levels:
        level = {f"compression_{codec.name}_level": codec.levels[0]}
        config = ProducerConfig({"compression_type": codec.name, **level})
        assert config.effective_compression_level == codec.levels[0]


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_partitioner_names_a_key_hash_and_a_policy_that_exist(name: str) -> None:
    with Rig({"t": [1, 1, 1]}, spec=BUILT_IN[name]) as rig:
        futures = [rig.send("t", b"v"), rig.send("t", b"v", b"k")]
        rig.answer_all()
        assert all(future.succeeded() for future in futures)


def test_each_counter_is_counted_and_read_by_a_metric() -> None:
    counts = "\n".join(path.read_text() for path in SOURCES.rglob("*.pyx") if path.stem != "metric_snapshot")
    metrics = Path(definitions.__file__).read_text()
    for name in SUM_NAMES:
        assert re.search(rf"\[{name.upper()}\]|\b{name.upper()},\s", counts), f"nothing counts {name}"
        assert f'"{name}"' in metrics, f"no metric reads {name}"
    assert all(f'"{name}"' in metrics for name in (*PEAK_NAMES, *TIMED_NAMES))
    assert set(TIMED_NAMES) <= set(PEAK_NAMES)


def test_the_sizes_of_the_lists_of_counters_stand_behind_them() -> None:
    numbers = {name: number for name, number in vars(meters).items() if isinstance(number, int)}
    sizes = {name: numbers.pop(name) for name in ("SUMS", "PEAKS", "HISTOGRAMS")}
    peaks = [number for name, number in numbers.items() if name.endswith("_PEAK")]
    timed = [number for name, number in numbers.items() if name.endswith("_TIMED")]
    sums = [number for name, number in numbers.items() if not name.endswith(("_PEAK", "_TIMED"))]
    assert (sorted(sums), sorted(peaks), sorted(timed)) == tuple(map(list, map(range, sizes.values())))


def test_each_response_is_decoded() -> None:
    for module in ("transaction_api", "telemetry_api", "admin_api", "sasl_api"):
        importlib.import_module(f"cyproducer.wire.{module}")
    assert set(DECODERS) == {*CLIENT} - {PRODUCE}
