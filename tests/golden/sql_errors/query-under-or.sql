SELECT carrier FROM flights
WHERE delay > 1 OR carrier IN (SELECT carrier FROM alerts)
