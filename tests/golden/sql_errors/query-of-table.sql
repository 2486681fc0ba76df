SELECT carrier FROM flights
WHERE delay > (SELECT max(rank) FROM airlines)
