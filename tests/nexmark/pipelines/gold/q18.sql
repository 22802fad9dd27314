-- meaning: NEXMark 18, find last bid: of each bidder on each auction.
SELECT bid_id, auction, bidder, price, channel, url, date_time, extra, rank_number
FROM (
    SELECT *, row_number() OVER (PARTITION BY bidder, auction ORDER BY date_time DESC) AS rank_number
    FROM silver.bids
)
WHERE rank_number <= 1
