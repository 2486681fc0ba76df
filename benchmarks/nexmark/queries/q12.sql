-- Processing time windows: how many bids each bidder made in ten seconds of the clock on the wall.
SELECT bidder, count(*) AS bid_count, window_start AS starttime, window_end AS endtime
FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(PROCTIME()), INTERVAL '10' SECOND))
GROUP BY bidder, window_start, window_end
