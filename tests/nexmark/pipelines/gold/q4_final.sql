-- meaning: The final price of each auction, for query 4.
SELECT auction, category, max(price) AS final
FROM gold.bids_in_time
GROUP BY auction, category
