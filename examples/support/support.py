"""A help desk: messages by team and hour, how long customers wait for an answer, and an alert on urgent tickets."""

from datetime import datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import millstream as ms

app = ms.App("support")


class Ticket(ms.Event):
    ticket: int
    customer: str
    urgent: bool
    tags: list[str]
    opened_at: datetime


class Message(ms.Event):
    about: int  # the ticket
    agent: int
    text: str
    sent_at: datetime


class Answer(ms.Event):
    """A message of an agent within two hours after the ticket was opened."""

    ticket: int
    customer: str
    agent: int
    opened_at: datetime
    waited: float  # minutes


tickets = app.topic("tickets", Ticket, key="customer", event_time="opened_at", lateness="10 minutes")
messages = app.topic("messages", Message, key="about", event_time="sent_at", lateness="10 minutes")
answers = app.topic("answers", Answer, key="customer", event_time="opened_at", lateness="3 hours")
agents = app.table("agents", source=ms.postgres("desk", table="agents"))


@app.view(messages, agents, key=["team", "hour"])
def team_hours(messages: DataFrame, agents: DataFrame) -> DataFrame:
    teams = agents.select(F.col("id").alias("agent"), "team")
    return (
        messages.join(teams, "agent")
        .groupBy("team", ms.tumbling("sent_at", "1 hour").alias("hour"))
        .agg(F.count("*").alias("messages"), F.avg(F.length("text")).alias("mean_length"))
    )


@app.stream(tickets, messages, to=answers, key="customer")
def answered(tickets: DataFrame, messages: DataFrame) -> DataFrame:
    within = F.expr("about = ticket AND sent_at BETWEEN opened_at AND opened_at + INTERVAL 2 HOURS")
    waited = (F.unix_micros("sent_at") - F.unix_micros("opened_at")) / 60e6
    return tickets.join(messages, within).select("ticket", "customer", "agent", "opened_at", waited.alias("waited"))


@app.view(answers, key=["customer"])
def waits(answers: DataFrame) -> DataFrame:
    return answers.groupBy("customer").agg(F.count("*").alias("answers"), F.min("waited").alias("shortest"))


@app.alert(tickets, to="urgent_tickets", key="customer")
def urgent(tickets: DataFrame) -> DataFrame:
    return tickets.where("urgent").withColumn("tags", F.from_json("tags", "array<string>"))
