-- meaning: The highest price of each ten seconds, for query 7.
SELECT window_start, window_end, max(price) AS price
FROM silver.bids
GROUP BY window(date_time, '10 seconds')
