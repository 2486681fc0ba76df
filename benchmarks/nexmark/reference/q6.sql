WITH won AS (
  SELECT A.seller, B.price AS final, B."dateTime" AS "dateTime"
  FROM auction A, bid B
  WHERE A.id = B.auction AND B."dateTime" BETWEEN A."dateTime" AND A.expires
  QUALIFY ROW_NUMBER() OVER (PARTITION BY A.id ORDER BY B.price DESC, B."dateTime") = 1
)
SELECT seller, "dateTime",
       AVG(final) OVER (PARTITION BY seller ORDER BY "dateTime" ROWS BETWEEN 9 PRECEDING AND CURRENT ROW) AS average
FROM won
