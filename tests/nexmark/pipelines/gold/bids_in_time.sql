-- meaning: Each bid that was made while its auction was open, with what queries 4, 6 and 9 need of the auction.
SELECT
    b.bid_id, b.auction, b.bidder, b.price, b.date_time,
    a.category, a.seller, a.item_name, a.reserve, a.expires
FROM silver.bids AS b
JOIN silver.auctions AS a ON b.auction = a.id AND b.date_time BETWEEN a.date_time AND a.expires
