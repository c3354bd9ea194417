"""How far a recovery is, in log and metrics."""

from __future__ import annotations

from structlog.testing import capture_logs

from ontrack.pipeline.kafka.progress import TOLD_EVERY_S, Progress
from ontrack.pipeline.metrics import Metrics


def lag(metrics: Metrics) -> float | None:
    return metrics.registry.get_sample_value("ontrack_watermark_lag", {"partition": "3"})


def test_a_line_now_and_then_and_a_gauge_that_falls_to_zero() -> None:
    passed, metrics = [0.0], Metrics()
    progress = Progress(3, 1000, 3000, metrics, lambda: passed[0])
    assert lag(metrics) == 2000
    with capture_logs() as lines:
        for offset in range(1100, 3001, 100):  # a batch a second
            passed[0] += 1.0
            progress.tell(offset)
            assert lag(metrics) == 3000 - offset
    assert {line["event"] for line in lines} == {"partition_recovering"}
    assert len(lines) == 20 // TOLD_EVERY_S
    shares = [line["share"] for line in lines]
    assert shares == sorted(shares)
    assert lines[2] == {
        "event": "partition_recovering",
        "log_level": "info",
        "partition": 3,
        "folded": 900,
        "events": 2000,
        "share": 0.45,
        "seconds_left": 11.0,
    }


def test_a_short_recovery_says_nothing_in_between() -> None:
    passed = [0.0]
    progress = Progress(3, 0, 10, Metrics(), lambda: passed[0])
    with capture_logs() as lines:
        passed[0] = 2 * TOLD_EVERY_S
        progress.tell(10)  # who is done is told by partition_ready
    assert lines == []
