SELECT carrier,
       count(*) OVER (PARTITION BY carrier) AS n
FROM flights
