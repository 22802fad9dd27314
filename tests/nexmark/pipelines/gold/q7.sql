-- meaning: NEXMark 7, highest bid: the bids with the highest price of their ten seconds.
SELECT b.bid_id, b.auction, b.price, b.bidder, b.date_time, h.window_start
FROM silver.bids AS b
JOIN gold.q7_highest AS h
    ON b.price = h.price AND b.date_time >= h.window_start AND b.date_time < h.window_end
