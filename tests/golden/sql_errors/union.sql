SELECT carrier FROM flights UNION SELECT carrier FROM alerts UNION ALL SELECT carrier FROM flights
