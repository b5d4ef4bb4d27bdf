"""Test suites by other people, run against our broker; each module gets its suite from a package registry and runs it.

kcat           kcat on an old librdkafka: our own round trips through it
kafka_python   kafka-python's integration tests, out of its source package
aiokafka       aiokafka's tests, which no package holds: aiokafka_tests/ has those that talk to a broker
franz_go       franz-go's client tests, out of its Go module
java           Apache Kafka's own Java clients: its verifiable and transactional tools, and a Kafka Streams application
"""
