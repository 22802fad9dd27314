"""The queries of NEXMark as a project: what an auction house asks of its bids, auctions and people, in SQL alone."""
