-- meaning: NEXMark 20, expand bid with auction: the bids on auctions of category 10.
SELECT
    b.bid_id, b.auction, b.bidder, b.price, b.channel, b.url, b.date_time AS bid_time, b.extra AS bid_extra,
    a.item_name, a.description, a.initial_bid, a.reserve, a.date_time AS auction_time, a.expires, a.seller, a.category,
    a.extra AS auction_extra
FROM silver.bids AS b
JOIN silver.auctions AS a ON b.auction = a.id
WHERE a.category = 10
