-- meaning: NEXMark 11, user sessions: how many bids a bidder made without a pause of ten seconds.
SELECT bidder, window_start, window_end, count(*) AS bids
FROM silver.bids
GROUP BY bidder, session_window(date_time, '10 seconds')
