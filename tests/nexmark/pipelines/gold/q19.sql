-- meaning: NEXMark 19, auction top 10: the ten highest bids of each auction.
SELECT *
FROM (
    SELECT *, row_number() OVER (PARTITION BY auction ORDER BY price DESC) AS rank_number
    FROM silver.bids
)
WHERE rank_number <= 10
