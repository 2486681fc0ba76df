SELECT count(*) AS n
FROM TUMBLE(TABLE flights, DESCRIPTOR(delay), INTERVAL '1' HOUR)
GROUP BY window_start
