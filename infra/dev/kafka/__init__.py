"""A real Apache Kafka broker from Maven jars."""
