"""Turns Kafka's JSON message definitions into the modules of `millstream.protocol.messages`.

Run: `python -m millstream.protocol.generator FOLDER_OR_JAR...` with the jars kafka-clients, kafka-group-coordinator
and kafka-transaction-coordinator of one Kafka release (Maven Central).
"""
