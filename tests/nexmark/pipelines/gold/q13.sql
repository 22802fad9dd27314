-- meaning: NEXMark 13, bounded side input: each bid with a value from a table.
SELECT b.bid_id, b.auction, b.bidder, b.price, b.date_time, s.key AS side_key, s.value
FROM silver.bids AS b
JOIN silver.side_input AS s ON mod(b.auction, 10000) = s.key
