WITH P AS (
  SELECT DISTINCT id, name, time_bucket(INTERVAL '10 seconds', "dateTime") AS starttime FROM person
), A AS (
  SELECT DISTINCT seller, time_bucket(INTERVAL '10 seconds', "dateTime") AS starttime FROM auction
)
SELECT P.id, P.name, P.starttime FROM P JOIN A ON P.id = A.seller AND P.starttime = A.starttime
