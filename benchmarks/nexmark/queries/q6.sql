-- Average selling price by seller: over the last ten auctions of each seller that had bids.
SELECT Q.seller, Q.dateTime,
       AVG(Q.final) OVER (PARTITION BY Q.seller ORDER BY Q.dateTime ROWS BETWEEN 9 PRECEDING AND CURRENT ROW) AS average
FROM (
  SELECT seller, price AS final, bid_dateTime AS dateTime
  FROM (
    SELECT A.seller, B.price, B.dateTime AS bid_dateTime,
           ROW_NUMBER() OVER (PARTITION BY A.id ORDER BY B.price DESC, B.dateTime ASC) AS rownum
    FROM auction A, bid B
    WHERE A.id = B.auction AND B.dateTime BETWEEN A.dateTime AND A.expires
  )
  WHERE rownum <= 1
) AS Q
