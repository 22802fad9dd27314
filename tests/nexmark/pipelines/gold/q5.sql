-- meaning: NEXMark 5, hot items: the auctions with the most bids in each window.
SELECT window_start, auction, bids, rank() OVER (PARTITION BY window_start ORDER BY bids DESC) AS place
FROM gold.q5_counts
QUALIFY place <= 1
