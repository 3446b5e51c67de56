"""/metrics in Prometheus' text format.

Each family is written as ``rooftree:NAME``, with vLLM's suffix and unit, and again as ``vllm:NAME`` where
vLLM has a metric of that name, so that its dashboards and the routers built for it work. Both are read from
one set of numbers. Labels ``model_name`` and ``engine`` are vLLM's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from rooftree.server.families import FAMILIES, Family
from rooftree.server.histogram import Histogram
from rooftree.server.metrics import Metrics

LABELS = ("model_name", "engine")


class Exposition(Collector):
    """Writes ``metrics`` out whenever it is asked to."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def text(self) -> bytes:
        """All metrics in the text format, version 0.0.4."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """All families under both prefixes."""
        for family in FAMILIES:
            yield self._metric("rooftree", family)
            if family.alias:
                yield self._metric("vllm", family)

    def _metric(self, prefix: str, family: Family) -> Metric:
        name, value = f"{prefix}:{family.name}", family.read(self._metrics)
        common = [self._metrics.model_name, "0"]
        if isinstance(value, Histogram):
            histogram = HistogramMetricFamily(name, family.help, labels=LABELS)
            histogram.add_metric(common, value.buckets(), value.sum)
            return histogram
        kind = GaugeMetricFamily if family.kind == "gauge" else CounterMetricFamily
        metric = kind(name, family.help, labels=(*LABELS, *family.labels))
        for labels, number in (value if isinstance(value, Mapping) else {(): value}).items():
            metric.add_metric([*common, *labels], number)
        return metric
