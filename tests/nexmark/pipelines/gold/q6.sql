-- meaning: NEXMark 6, average selling price by seller: of each seller's last eleven auctions, at each.
SELECT
    auction, rank, seller,
    avg(price) OVER (
        PARTITION BY seller ORDER BY date_time, auction, rank ROWS BETWEEN 10 PRECEDING AND CURRENT ROW
    ) AS average
FROM gold.q9
