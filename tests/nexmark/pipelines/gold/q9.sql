-- meaning: NEXMark 9, winning bids: the best bid of each auction, the earlier one of two.
SELECT
    bid_id, auction, bidder, price, date_time, category, seller, item_name, reserve, expires,
    row_number() OVER (PARTITION BY auction ORDER BY price DESC, date_time) AS rank
FROM gold.bids_in_time
QUALIFY rank <= 1
