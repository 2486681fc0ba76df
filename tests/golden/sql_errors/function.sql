SELECT carrier,
       1 + getenv('HOME') AS x
FROM flights
