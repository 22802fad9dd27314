"""Bronze: the topics that land."""

from sluice import bronze

orders = bronze.topic("orders", meaning="Each order, as the shop sent it.")
products = bronze.topic("products", meaning="Each change of a product or its price.")
