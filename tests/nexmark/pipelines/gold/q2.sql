-- meaning: NEXMark 2, selection: the bids on some auctions.
SELECT bid_id, auction, price
FROM silver.bids
WHERE mod(auction, 123) = 0
