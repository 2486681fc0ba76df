SELECT carrier FROM flights
UNION ALL
SELECT carrier, level FROM alerts
