SELECT carrier, count(DISTINCT delay) OVER (PARTITION BY carrier ORDER BY at) AS n FROM flights
