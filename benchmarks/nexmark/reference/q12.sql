-- Only the totals: which window a bid falls into is for the clock to say.
SELECT bidder, count(*) AS bid_count FROM bid GROUP BY bidder
