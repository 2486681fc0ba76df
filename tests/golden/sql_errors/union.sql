SELECT carrier FROM flights
UNION
SELECT carrier FROM alerts
