-- meaning: NEXMark 4, average price for a category: of the final prices of its auctions.
SELECT category, avg(final) AS average
FROM gold.q4_final
GROUP BY category
