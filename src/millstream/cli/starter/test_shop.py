"""The functions of the shop on orders in memory: no log, no database."""

from datetime import UTC, datetime

from shop import Order, large, sales

import millstream as ms

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def order(product: str, quantity: int, price: float, second: int = 0) -> Order:
    return Order(customer="c1", product=product, quantity=quantity, price=price, at=NOON.replace(second=second))


def test_sales_add_up_by_product_and_minute():
    rows = ms.testing.run(sales, orders=[order("apple", 2, 0.5), order("apple", 3, 0.5, 59), order("bread", 1, 3.2)])
    assert {row["product"]: (row["sold"], row["revenue"]) for row in rows} == {"apple": (5, 2.5), "bread": (1, 3.2)}
    assert {row["minute_start"] for row in rows} == {NOON}


def test_only_large_orders_are_alerts():
    rows = ms.testing.run(large, orders=[order("bicycle", 1, 420.0), order("bicycle", 2, 420.0)])
    assert [row["quantity"] for row in rows] == [2]
