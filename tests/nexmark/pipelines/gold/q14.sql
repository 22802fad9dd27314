-- meaning: NEXMark 14, calculation: bids of some prices, with the time of day and how many c are in the extra text.
SELECT
    bid_id, auction, bidder, 0.908 * price AS price,
    CASE
        WHEN hour(date_time) BETWEEN 8 AND 18 THEN 'dayTime'
        WHEN hour(date_time) <= 6 OR hour(date_time) >= 20 THEN 'nightTime'
        ELSE 'otherTime'
    END AS bid_time_type,
    date_time, extra, length(extra) - length(replace(extra, 'c', '')) AS c_counts
FROM silver.bids
WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000
