-- meaning: Who opened auctions in each ten seconds, for query 8.
SELECT seller, window_start, window_end, count(*) AS auctions
FROM silver.auctions
GROUP BY seller, window(date_time, '10 seconds')
