"""Operators: functions of DataFrames and columns for those who write queries. No I/O."""
