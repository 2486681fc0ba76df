"""What sources and sinks share of Kafka: client options, error mapping, topic metadata and offsets."""
