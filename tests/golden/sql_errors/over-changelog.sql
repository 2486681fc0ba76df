SELECT carrier, sum(n) OVER (ORDER BY at) AS n
FROM (SELECT carrier, at, count(*) AS n FROM flights GROUP BY carrier, at)
