SELECT carrier,
       count(*) OVER (PARTITION BY carrier ORDER BY at DESC) AS n
FROM flights
