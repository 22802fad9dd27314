"""NEXMark's three streams, and the side input of its query 13. All that is computed from them is in `.sql` files."""

from sluice import bronze, silver

bids = silver.events(
    "bids",
    source=bronze.topic("bids"),
    schema=(
        "bid_id bigint, auction bigint, bidder bigint, price bigint, channel string, url string, date_time timestamp, "
        "extra string"
    ),
    keys=["bid_id"],
    event_time="date_time",
    future_tolerance="1000 days",
    meaning="Each bid once. NEXMark's bids have no key, so the generator's number of the event is one.",
)

auctions = silver.events(
    "auctions",
    source=bronze.topic("auctions"),
    schema=(
        "id bigint, item_name string, description string, initial_bid bigint, reserve bigint, date_time timestamp, "
        "expires timestamp, seller bigint, category bigint, extra string"
    ),
    keys=["id"],
    event_time="date_time",
    future_tolerance="1000 days",
)

people = silver.events(
    "people",
    source=bronze.topic("people"),
    schema="id bigint, name string, email_address string, city string, state string, date_time timestamp, extra string",
    keys=["id"],
    event_time="date_time",
    future_tolerance="1000 days",
)

side_input = silver.events(
    "side_input", source=bronze.topic("side_input"), schema="key bigint, value string", keys=["key"]
)
