WITH won AS (
  SELECT A.id, A.seller, B.price AS final, B."dateTime" AS "dateTime"
  FROM auction A, bid B
  WHERE A.id = B.auction AND B."dateTime" BETWEEN A."dateTime" AND A.expires
  QUALIFY ROW_NUMBER() OVER (PARTITION BY A.id ORDER BY B.price DESC, B."dateTime") = 1
), latest AS (
  SELECT seller, final FROM won
  QUALIFY ROW_NUMBER() OVER (PARTITION BY seller ORDER BY "dateTime" DESC, id) <= 10
)
SELECT seller, AVG(final) AS average FROM latest GROUP BY seller
