SELECT carrier,
       (SELECT max(level) FROM alerts) AS x
FROM flights
