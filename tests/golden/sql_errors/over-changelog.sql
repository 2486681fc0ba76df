SELECT carrier, sum(n) OVER (ORDER BY at) AS n
FROM (SELECT carrier, max(at) AS at, count(*) AS n FROM flights GROUP BY carrier)
