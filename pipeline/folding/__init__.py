"""The fold: records in, outputs out, and all that is kept of a partition. No Kafka, no clock."""
