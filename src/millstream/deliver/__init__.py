"""Results on their way out: to topics, databases, people. No Spark, and no Spark needed."""
