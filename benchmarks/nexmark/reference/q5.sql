WITH counts AS (
  SELECT auction, starttime, count(*) AS num
  FROM bid, generate_series(0, 4) AS steps(step),
       LATERAL (SELECT time_bucket(INTERVAL '2 seconds', "dateTime") - to_seconds(2 * step) AS starttime)
  GROUP BY ALL
)
SELECT auction, num, starttime FROM counts
QUALIFY num = max(num) OVER (PARTITION BY starttime)
