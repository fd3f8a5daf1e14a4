"""Objects whose truth value is False and that are plugins all the same."""

from typing import Any

from cyproducer.config import ProducerConfig


class Counting:
    """An interceptor that has counted nothing yet."""

    def __len__(self) -> int:
        return 0

    def on_send(self, record: Any) -> Any:
        return record

    def init(self, metrics: list[Any]) -> None:
        """A metric reporter, too."""


def test_an_empty_collection_of_methods_is_a_plugin() -> None:
    plugin = Counting()
    assert not plugin
    assert ProducerConfig(interceptors=plugin).interceptors == (plugin,)
    assert ProducerConfig(metric_reporters=[plugin]).metric_reporters == (plugin,)
