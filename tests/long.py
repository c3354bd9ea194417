"""Which tests `make test` leaves to `make test-long`: each takes long, and has a shorter sister.

A quarter of an hour on two cores is the limit of `make test`. What stands here is a second way to
look at something that a test outside of this table looks at already.
"""

from __future__ import annotations

LONG = (
    # On a broker. Kept: kill -9 of workers, one worker killed, alerts and spans killed half-way.
    "simulation/test_rebalance.py",
    "simulation/test_faults.py::*broker killed*",
    "simulation/test_faults.py::*workers stopped*",
    "simulation/test_faults.py::*of three workers lost*",
    "simulation/test_faults.py::*kill -9 of workers-aiokafka*",
    "pipeline/kafka/test_stop.py",
    "pipeline/bench/test_bench_scale.py::test_the_command*",
    "pipeline/kafka/test_kafka.py::test_a_proposal_is_answered*[[]aiokafka*",
    "pipeline/kafka/test_more_partitions.py",
    "pipeline/kafka/test_long_runs.py::test_a_killed_worker_is_ready_again*",
    "pipeline/bench/test_bench_pipeline.py::test_the_command_measures_everything*",
    "pipeline/kafka/test_kafka.py::test_a_worker_that_was_stopped_begins_again*",
    "pipeline/kafka/test_order.py::test_steps_that_overtook*",
    "pipeline/kafka/test_otlp_source.py::test_who_follows_a_reader_that_died*",
    "pipeline/kafka/test_otlp_source.py::test_a_broker_that_is_killed*",
    "pipeline/alerting/test_alerts_kafka.py::test_processes_that_come_and_go*",
    "pipeline/alerting/test_alerts_kafka.py::test_a_broker_that_goes_away*",
    "pipeline/alerting/test_alerts_kafka.py::test_a_first_start_tells*",
    "pipeline/alerting/test_alerts_kafka.py::test_what_waits_in_a_window*",
    "pipeline/kafka/test_kafka.py::test_a_cold_start_says_nothing_twice*",
    "pipeline/dashboard/test_feeds.py::test_the_kafka_feed_is_down*",
    "pipeline/kafka/test_order.py::test_a_step_that_never_comes*",
    # In a browser. Kept: a run goes from OK to LOOP, filters, the run's page, hostile content, two
    # thousand runs, accessibility at a desk in the light.
    "pipeline/dashboard/test_browser.py::test_axe*[[]desktop-dark*",
    "pipeline/dashboard/test_browser.py::test_axe*[[]phone*",
    "pipeline/dashboard/test_browser.py::test_a_daemon_that_went_away*",
    "pipeline/dashboard/test_browser.py::test_with_kafka*",
    "pipeline/dashboard/test_browser.py::test_a_source_that_is_not_there*",
    "pipeline/dashboard/test_browser.py::test_the_demo_needs_nothing*",
    "pipeline/dashboard/test_browser.py::test_an_empty_page*",
    "pipeline/dashboard/test_browser.py::test_columns_sort*",
    "pipeline/dashboard/test_browser.py::test_the_theme_is*",
    "pipeline/dashboard/test_browser.py::test_references_are_listed*",
    # Documents whose commands are many; README's and those of the hosts are run each time.
    "test_docs.py::*docs/bad-input.md*",
    "test_docs.py::*docs/contracts.md*",
    "test_docs.py::*docs/distance.md*",
    "test_docs.py::*docs/scoring.md*",
    "test_docs.py::*docs/references.md*",
    # Whole commands whose parts have tests of their own.
    "pipeline/evaluation/test_calibration.py::test_the_same_seed*",
    "pipeline/evaluation/test_processes.py",
    "pipeline/evaluation/test_horizon.py::test_what_a_collapsed_run_publishes*",
    "pipeline/evaluation/test_tracking.py::test_the_controlled_campaign*",
    "pipeline/cli/test_evaluate.py::test_tracking_is_shown*",
    "pipeline/evaluation/test_tables.py::test_the_report_has_every_table*",
    "pipeline/sdk/test_sync.py::test_a_program_whose_monitor_is_gone*",
    "pipeline/scoring/test_score_files.py::test_memory_is_flat*",
    "pipeline/cli/test_cli.py::TestReplay::test_compressed_files*",
    "pipeline/serving/test_exporter.py::*NoCompression*",
    "pipeline/serving/test_exporter.py::test_a_conversation_goes_on*",
    "pipeline/reading/test_readers.py::*test_memory_does_not_grow*",
)
