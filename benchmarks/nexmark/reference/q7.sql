WITH highest AS (
  SELECT MAX(price) AS maxprice, time_bucket(INTERVAL '10 seconds', "dateTime") + INTERVAL '10 seconds' AS "dateTime"
  FROM bid GROUP BY ALL
)
SELECT B.auction, B.price, B.bidder, B."dateTime", B.extra
FROM bid B JOIN highest B1 ON B.price = B1.maxprice
WHERE B."dateTime" BETWEEN B1."dateTime" - INTERVAL '10 seconds' AND B1."dateTime"
