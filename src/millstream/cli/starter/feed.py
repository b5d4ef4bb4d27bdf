"""Orders for the shop that runs in this folder: `python feed.py 1000` sends as many, `python feed.py` two a second."""

import random
import sys
import time
from datetime import UTC, datetime

from shop import Order, orders

PRICES = {"apple": 0.5, "bread": 3.2, "coffee": 7.9, "bicycle": 420.0}


def order() -> Order:
    product = random.choice([*PRICES])
    customer = f"customer-{random.randrange(100)}"
    at = datetime.now(UTC)
    return Order(customer=customer, product=product, quantity=random.randint(1, 3), price=PRICES[product], at=at)


if len(sys.argv) > 1:
    sent = orders.send_many(order() for _ in range(int(sys.argv[1])))  # returns when the log has them all
    print(f"{sent:,} orders sent")
else:
    print("two orders a second, until Ctrl-C")
    while True:
        orders.send(order())
        time.sleep(0.5)
