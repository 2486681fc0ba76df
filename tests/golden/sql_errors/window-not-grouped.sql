SELECT carrier, count(*) AS n
FROM TUMBLE(TABLE flights, DESCRIPTOR(at), INTERVAL '1' HOUR)
GROUP BY carrier
