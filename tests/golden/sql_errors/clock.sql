SELECT carrier FROM flights
WHERE at > now()
