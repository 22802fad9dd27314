-- meaning: How many bids each auction has in ten seconds, every two seconds; for query 5.
SELECT auction, window_start, window_end, count(*) AS bids
FROM silver.bids
GROUP BY auction, window(date_time, '10 seconds', '2 seconds')
