SELECT carrier,
       delay + 1
FROM flights
