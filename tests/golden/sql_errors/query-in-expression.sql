SELECT carrier,
       (SELECT level FROM alerts) AS x
FROM flights
