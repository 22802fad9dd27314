-- meaning: NEXMark 0, pass through: every bid.
SELECT bid_id, auction, bidder, price, date_time, extra
FROM silver.bids
