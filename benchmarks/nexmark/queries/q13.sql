-- Bounded side input join: a static table adds a value.
SELECT B.auction, B.bidder, B.price, B.dateTime, S.value
FROM (SELECT *, MOD(auction, 10000) AS side_key FROM bid) AS B
JOIN side_input FOR SYSTEM_TIME AS OF PROCTIME() AS S
ON B.side_key = S.key
