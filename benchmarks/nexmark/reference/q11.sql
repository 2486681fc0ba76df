WITH marked AS (
  SELECT bidder, "dateTime",
         coalesce("dateTime" - lag("dateTime") OVER (PARTITION BY bidder ORDER BY "dateTime") >= INTERVAL '10 seconds', true)::INT AS begins
  FROM bid
), numbered AS (
  SELECT bidder, "dateTime", sum(begins) OVER (PARTITION BY bidder ORDER BY "dateTime") AS number FROM marked
)
SELECT bidder, count(*) AS bid_count, min("dateTime") AS starttime, max("dateTime") + INTERVAL '10 seconds' AS endtime
FROM numbered GROUP BY bidder, number
