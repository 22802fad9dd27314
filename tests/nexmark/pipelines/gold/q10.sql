-- meaning: NEXMark 10, log to file system: every bid with its day and minute.
SELECT
    bid_id, auction, bidder, price, date_time, extra,
    date_format(date_time, 'yyyy-MM-dd') AS day, date_format(date_time, 'HH:mm') AS minute
FROM silver.bids
