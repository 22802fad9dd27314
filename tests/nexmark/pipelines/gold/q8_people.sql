-- meaning: Who registered in each ten seconds, for query 8.
SELECT id, name, window_start, window_end, count(*) AS times
FROM silver.people
GROUP BY id, name, window(date_time, '10 seconds')
