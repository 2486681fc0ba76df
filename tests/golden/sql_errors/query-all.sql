SELECT carrier FROM flights
WHERE delay > ALL (SELECT level FROM alerts)
