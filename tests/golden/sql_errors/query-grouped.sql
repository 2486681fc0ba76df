SELECT carrier FROM flights
WHERE delay > (SELECT max(level) FROM alerts GROUP BY carrier)
