"""A shop: orders come in as events, sales by product and minute are a table, and a large order is an alert."""

from datetime import datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import millstream as ms

app = ms.App("shop")


class Order(ms.Event):
    customer: str
    product: str
    quantity: int
    price: float
    at: datetime


orders = app.topic("orders", Order, key="customer", event_time="at", lateness="1 minute")


@app.view(orders, key=["product", "minute"])
def sales(orders: DataFrame) -> DataFrame:
    return orders.groupBy("product", ms.tumbling("at", "1 minute").alias("minute")).agg(
        F.sum("quantity").alias("sold"),
        F.round(F.sum(F.col("quantity") * F.col("price")), 2).alias("revenue"),
    )


@app.alert(orders, to="large_orders", key="customer")
def large(orders: DataFrame) -> DataFrame:
    return orders.where("quantity * price > 500")
