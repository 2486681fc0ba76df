SELECT carrier, LEAD(delay) OVER (ORDER BY at) AS n FROM flights
