SELECT carrier, delay, count(*) AS n
FROM flights GROUP BY carrier
