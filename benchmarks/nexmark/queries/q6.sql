-- Average selling price by seller: of each seller's last ten auctions that had bids ([PARTITION BY seller ROWS 10] in the
-- query's first form).
SELECT R.seller, AVG(R.final) AS average
FROM (
  SELECT seller, final, ROW_NUMBER() OVER (PARTITION BY seller ORDER BY dateTime DESC, id ASC) AS place
  FROM (
    SELECT A.id, A.seller, B.price AS final, B.dateTime AS dateTime,
           ROW_NUMBER() OVER (PARTITION BY A.id ORDER BY B.price DESC, B.dateTime ASC) AS rownum
    FROM auction A, bid B
    WHERE A.id = B.auction AND B.dateTime BETWEEN A.dateTime AND A.expires
  )
  WHERE rownum <= 1
) R
WHERE R.place <= 10
GROUP BY R.seller
