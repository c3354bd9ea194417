"""Where the dashboard's news come from: Kafka, a daemon, or a monitor in this process."""
