-- meaning: NEXMark 1, currency conversion: every bid with its price in euro.
SELECT bid_id, auction, bidder, CAST(0.908 AS DECIMAL(4, 3)) * price AS price, date_time, extra
FROM silver.bids
