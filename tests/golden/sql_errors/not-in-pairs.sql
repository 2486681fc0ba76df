SELECT carrier FROM flights
WHERE (carrier, delay) NOT IN (SELECT carrier, level FROM alerts WHERE level IS NOT NULL)
