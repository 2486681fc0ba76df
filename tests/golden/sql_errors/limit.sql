SELECT carrier FROM flights
LIMIT 5
