"""The Kafka shell over the fold: connection, log, outputs, knowledge, Faust agents."""
